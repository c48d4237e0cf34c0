"""The files that Docker reads agree with each other and with the rest of the project."""

import re
from pathlib import Path

from fedappeal.containers.prepare import OWNED
from fedappeal.containers.replica import OPTIONS

ROOT = Path(__file__).parents[2]
COMPOSE = (ROOT / "docker-compose.yml").read_text()
EXAMPLE = (ROOT / ".env.example").read_text()


def pins(path: str) -> dict[str, str]:
    lines = (ROOT / path).read_text().splitlines()
    return {line.partition("==")[0]: line for line in lines if "==" in line}


def test_every_setting_is_in_the_example_with_its_default() -> None:
    defaults = dict(re.findall(r"\$\{([A-Z_]+):-([^}]*)\}", COMPOSE))
    shown = dict(re.findall(r"^#([A-Z_]+)=(.*)$", EXAMPLE, re.MULTILINE))
    assert set(defaults) - set(shown) == {"SUPERLINK_LOG_LEVEL", "INDEX_URL"}
    assert set(shown) <= set(defaults)
    without_default = {"OPTIONS", "HOSTS", "TORCH_BACKEND", "DATA_DIR", "FLEET_ADDRESS"}
    for name in set(shown) - without_default:
        assert shown[name] == defaults[name], name


def test_the_clients_get_every_variable_that_their_replica_reads() -> None:
    client = COMPOSE.partition("\n  client:\n")[2].partition("\n  federation:\n")[0]
    assert set(OPTIONS) <= set(re.findall(r"^ {6}([A-Z_]+): ", client, re.MULTILINE))


def test_a_setting_has_one_default() -> None:
    for name in set(re.findall(r"\$\{([A-Z_]+):-", COMPOSE)):
        assert len(set(re.findall(rf"\$\{{{name}:-([^}}]*)\}}", COMPOSE))) == 1, name


def test_only_the_fleet_port_is_published() -> None:
    published = re.findall(r'^ +- "(.*):(\d+)"$', COMPOSE, re.MULTILINE)
    assert published == [("${FLEET_ADDRESS:-127.0.0.1}:${FLEET_PORT:-9092}", "9092")]


def test_every_folder_that_is_prepared_is_a_volume_and_one_container_alone_has_the_cas_key() -> None:
    mounted = re.findall(r"^ +- ([a-z]+):/federation/([a-z]+)(:ro)?$", COMPOSE, re.MULTILINE)
    assert all(volume == folder for volume, folder, _ in mounted)
    written = [volume for volume, _, read_only in mounted if not read_only]
    assert tuple(written[: len(OWNED)]) == OWNED  # those of the service that prepares them, which comes first
    assert [volume for volume, _, _ in mounted].count("authority") == 1


def test_the_image_is_made_of_the_same_versions_and_of_no_tools() -> None:
    image, everything = pins("docker/requirements.txt"), pins("requirements.txt")
    versions = {name: pin.partition(" ;")[0] for name, pin in everything.items()}  # who needs it may differ
    assert {name: versions[name] for name in image} == {name: pin.partition(" ;")[0] for name, pin in image.items()}
    assert {"flwr", "torch", "torchvision", "scikit-learn", "flwr-datasets"} <= set(image)
    assert not {"pytest", "mypy", "ruff", "ray", "hypothesis"} & set(image)


def test_the_image_is_built_with_the_same_installer() -> None:
    (version,) = re.findall(r"^ARG UV_VERSION=(.+)$", (ROOT / "docker" / "Dockerfile").read_text(), re.MULTILINE)
    assert pins("requirements.txt")["uv"].split(" ")[0] == f"uv=={version}"


def test_nothing_private_can_be_built_into_the_image() -> None:
    kept = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")]
    assert kept[0] == "*"
    wanted = {"LICENSE", "README.md", "pyproject.toml", "client", "docker/requirements.txt", "fedappeal", "server"}
    assert {line[1:] for line in kept if line.startswith("!")} == wanted | {"strategies"}
