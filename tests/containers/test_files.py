"""The files that Docker reads agree with each other and with the rest of the project."""

import re
import subprocess
from pathlib import Path

import pytest

from fedappeal.containers.prepare import OWNED

LOCKS = ["requirements.txt", "requirements-newest.txt", "docker/requirements.txt", "docker/installer.txt"]
ROOT = Path(__file__).parents[2]
COMPOSE = (ROOT / "docker-compose.yml").read_text()
EXAMPLE = (ROOT / ".env.example").read_text()


def pins(path: str) -> dict[str, str]:
    lines = (ROOT / path).read_text().splitlines()
    return {line.partition("==")[0]: line.removesuffix(" \\") for line in lines if "==" in line}


def described(service: str) -> str:
    """What the compose file says of a service, without what it shares with the others."""
    (found,) = re.findall(rf"^  {service}:\n((?:(?: {{4}}.*)?\n)+)", COMPOSE, re.MULTILINE)
    return str(found)


def test_every_setting_is_in_the_example_with_its_default() -> None:
    defaults = dict(re.findall(r"\$\{([A-Z_]+):-([^}]*)\}", COMPOSE))
    shown = dict(re.findall(r"^#([A-Z_]+)=(.*)$", EXAMPLE, re.MULTILINE))
    assert set(defaults) - set(shown) == {"SUPERLINK_LOG_LEVEL", "INDEX_URL"}
    assert set(shown) <= set(defaults)
    without_default = {
        "OPTIONS",
        "HOSTS",
        "TORCH_BACKEND",
        "DATA_DIR",
        "FLEET_ADDRESS",
        "FLEET_HTTP_ADDRESS",
        "JOIN_ADDRESS",
    }
    for name in set(shown) - without_default:
        assert shown[name] == defaults[name], name


@pytest.mark.parametrize("service", ["certs", "superlink", "client", "federation", "invitations", "page"])
def test_every_container_is_bounded_and_its_own_files_are_read_only(service: str) -> None:
    assert "    <<: *part\n" in described(service)
    assert not re.search(r"read_only|privileged|security_opt|pids_limit|tmpfs", described(service))
    shared = COMPOSE.partition("x-part: &part\n")[2].partition("\nservices:")[0]
    for line in (
        "cap_drop: [ALL]",
        'security_opt: ["no-new-privileges:true"]',
        "read_only: true",
        "pids_limit: ${PIDS:-512}",
        "mem_limit: ${PART_MEMORY:-2g}",
    ):
        assert f"  {line}\n" in shared


def test_a_setting_has_one_default() -> None:
    for name in set(re.findall(r"\$\{([A-Z_]+):-", COMPOSE)):
        assert len(set(re.findall(rf"\$\{{{name}:-([^}}]*)\}}", COMPOSE))) == 1, name


def test_only_the_fleet_ports_and_what_is_looked_at_are_published() -> None:
    published = re.findall(r'^ +- "(.*):(\d+)"$', COMPOSE, re.MULTILINE)
    assert published == [
        ("${FLEET_ADDRESS:-127.0.0.1}:${FLEET_PORT:-9092}", "9092"),
        ("${FLEET_HTTP_ADDRESS:-127.0.0.1}:${FLEET_HTTP_PORT:-9093}", "9093"),
        ("${JOIN_ADDRESS:-127.0.0.1}:${JOIN_PORT:-9094}", "9094"),
        ("127.0.0.1:${PAGE_PORT:-8090}", "8090"),
        ("127.0.0.1:${GRAFANA_PORT:-3000}", "3000"),
    ]


def test_the_page_is_always_there_knows_where_it_is_published_and_has_no_client_in_its_networks() -> None:
    page = described("page")
    assert '"--page=0.0.0.0:8090", "--page-published=127.0.0.1:${PAGE_PORT:-8090}", "--runs=/runs"]' in page
    assert "profiles:" not in page
    networks = "control, page, monitoring"
    assert f"networks: [{networks}]" in page
    assert not any(network in described("client") for network in networks.split(", "))


@pytest.mark.parametrize(
    "service", ["certs", "superlink", "client", "federation", "invitations", "page", "prometheus", "grafana"]
)
def test_every_service_has_a_health_check_but_the_one_that_ends_at_once(service: str) -> None:
    check = described(service).partition("    healthcheck:")[2]
    assert check.startswith("\n      disable: true\n") == (service == "certs")
    assert check


@pytest.mark.parametrize("service", ["prometheus", "grafana"])
def test_what_watches_is_confined_and_starts_with_its_profile_alone(service: str) -> None:
    assert "    <<: *watcher\n" in described(service)
    shared = COMPOSE.partition("x-watcher: &watcher\n")[2].partition("\nservices:")[0]
    for line in (
        "profiles: [monitoring]",
        "cap_drop: [ALL]",
        'security_opt: ["no-new-privileges:true"]',
        "read_only: true",
    ):
        assert f"  {line}\n" in shared
    assert re.search(r"    image: [a-z/]+:\$\{[A-Z]+_VERSION:-v?\d+\.\d+\.\d+\}\n", described(service))


def test_every_folder_that_is_prepared_is_a_volume_and_one_container_alone_has_the_cas_key() -> None:
    mounted = re.findall(r"^ +- ([a-z]+):/federation/([a-z]+)(:ro)?$", COMPOSE, re.MULTILINE)
    assert all(volume == folder for volume, folder, _ in mounted)
    written = [volume for volume, _, read_only in mounted if not read_only]
    assert tuple(written[: len(OWNED)]) == OWNED  # those of the service that prepares them, which comes first
    assert [volume for volume, _, _ in mounted].count("authority") == 1


def test_the_image_is_made_of_the_same_versions_and_of_no_tools() -> None:
    image, everything = pins("docker/requirements.txt"), pins("requirements-newest.txt")
    versions = {name: pin.partition(" ;")[0] for name, pin in everything.items()}  # who needs it may differ
    assert {name: versions[name] for name in image} == {name: pin.partition(" ;")[0] for name, pin in image.items()}
    assert {"flwr", "torch", "torchvision", "scikit-learn", "flwr-datasets"} <= set(image)
    assert not {"pytest", "mypy", "ruff", "ray", "hypothesis"} & set(image)


def test_the_installer_and_the_build_tool_are_of_the_same_versions() -> None:
    installer, everything = pins("docker/installer.txt"), pins("requirements.txt")
    assert {"uv", "hatchling", "editables"} <= set(installer)
    assert installer == {name: everything[name] for name in installer}


@pytest.mark.parametrize("path", LOCKS)
def test_every_package_is_pinned_with_hashes_and_no_address_is_named(path: str) -> None:
    text = (ROOT / path).read_text()
    assert text.endswith("\n")
    entries = text.replace(" \\\n", "").splitlines()
    assert len(entries) == len({entry.partition(" --hash")[0] for entry in entries}) > 5
    for entry in entries:
        assert re.fullmatch(r"[a-z0-9-]+==[\w.]+( ; [^/@\\]+?)?( +--hash=sha256:[0-9a-f]{64})+", entry), entry[:200]
    assert "://" not in text


@pytest.mark.parametrize("path", ["Makefile", "docker/Dockerfile"])
def test_nothing_is_installed_without_hashes_but_the_project_and_another_pytorch(path: str) -> None:
    text = (ROOT / path).read_text().replace("\\\n", "")
    found = re.findall(r"pip install ([^\n;]*)", "\n".join(x for x in text.splitlines() if not x.startswith("#")))
    assert len(found) >= 3
    for options in found:
        own = "--no-deps --no-build-isolation" in options
        assert own or "--require-hashes" in options or '--torch-backend "$TORCH_BACKEND" $torch' in options, options


def test_another_pytorch_takes_the_place_of_all_that_pypis_needs(tmp_path: Path) -> None:
    dockerfile = (ROOT / "docker" / "Dockerfile").read_text()
    (taken,) = re.findall(r"sed -n -E '([^']+)'", dockerfile)
    (dropped,) = re.findall(r"sed -i -E '([^']+)'", dockerfile)
    requirements = tmp_path / "requirements.txt"
    requirements.write_text((ROOT / "docker" / "requirements.txt").read_text())
    said = subprocess.run(["sed", "-n", "-E", taken, requirements], capture_output=True, text=True, check=True).stdout
    every = pins("docker/requirements.txt")
    assert said.split() == [every["torch"], every["torchvision"]]
    subprocess.run(["sed", "-i", "-E", dropped, requirements], check=True)
    left = set(re.findall(r"^([a-z0-9-]+)==", requirements.read_text(), re.MULTILINE))
    gone = set(every) - left
    assert {"torch", "torchvision", "triton", "cuda-toolkit", "nvidia-cublas"} <= gone
    assert all(re.match(r"torch|triton|cuda-|nvidia-", name) for name in gone)
    entries = requirements.read_text().replace(" \\\n", "").splitlines()
    assert all("==" in entry and "--hash=" in entry for entry in entries)


def test_nothing_private_can_be_built_into_the_image() -> None:
    kept = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")]
    assert kept[0] == "*"
    wanted = {"LICENSE", "README.md", "pyproject.toml", "client", "docker/requirements.txt", "fedappeal", "server"}
    wanted |= {"docker/installer.txt"}
    assert {line[1:] for line in kept if line.startswith("!")} == wanted | {"strategies"}
