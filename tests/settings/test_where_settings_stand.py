"""Where an owner's settings stand beside the command line: containers and their settings."""

import re
from pathlib import Path

from client.settings import owner_fields
from fedappeal.settings.model import fact

ROOT = Path(__file__).parents[2]
FIELDS = owner_fields()
VARIABLES = [key for key, field in FIELDS.items() if fact(field, "variable")]
OF_THE_SYSTEM = {"XDG_CACHE_HOME", "OMP_NUM_THREADS"}


def variable(key: str) -> str:
    return key.upper().replace("-", "_")


def text(path: str) -> str:
    return (ROOT / path).read_text()


def client_service() -> str:
    return text("docker-compose.yml").partition("\n  client:\n")[2].partition("\n  federation:\n")[0]


PLACES = {
    "docker-compose.yml, service client": (client_service, r"^ +{VARIABLE}: \${{{VARIABLE}:-"),
    ".env.example": (lambda: text(".env.example"), r"^#{VARIABLE}="),
}


def test_every_setting_with_a_variable_stands_wherever_an_owner_looks_for_it() -> None:
    missing = [
        f"{key} is missing in {place}"
        for key in VARIABLES
        for place, (read, pattern) in PLACES.items()
        if not re.search(pattern.format(key=key, VARIABLE=variable(key)), read(), re.MULTILINE)
    ]
    assert missing == []
    assert "allow" in VARIABLES


def test_every_variable_of_a_clients_container_is_an_owners_setting() -> None:
    given = set(re.findall(r"^ {6}([A-Z_]+): ", client_service(), re.MULTILINE))
    assert given - OF_THE_SYSTEM <= {variable(key) for key in FIELDS}
    assert {variable(key) for key in VARIABLES} <= given
