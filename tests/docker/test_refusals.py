"""Clients that are not to get in, or that do not fit the run: refused, with the reason, and the run goes on."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.docker.federation import IMAGE, SLOW, Federation, docker, wait_until

CLIENT = ("fedappeal", "client", "--superlink", "superlink:9092", "--partition-id", "0", "--connect-timeout", "8")
STATE = ("--state-dir", "/tmp/state")
CA = ("--root-certificates", "/federation/ca/ca.crt")
OTHER = 999
"""A wire protocol that no client speaks."""


def refused(federation: Federation, *arguments: str, before: str = "true") -> str:
    """Run a client that does not get in; return what it says."""
    command = f"{before} && exec {' '.join((*CLIENT, *STATE, *arguments))}"
    said = federation.compose("run", "--rm", "-T", "--no-deps", "client", "sh", "-c", command, check=False)
    (line,) = [line for line in said.splitlines() if line.startswith("fedappeal: gave up")]
    return line


def test_a_client_without_a_key_is_told_so(federation: Federation) -> None:
    assert "admits registered keys only, and this node has none" in refused(federation, *CA)


def test_a_client_with_an_unregistered_key_is_told_so(federation: Federation) -> None:
    line = refused(federation, *CA, "--key", "/tmp/own.key", before="fedappeal key /tmp/own.key")
    assert "does not admit this node's key (key-" in line
    assert "not registered there" in line


def test_a_client_without_tls_is_told_so(federation: Federation) -> None:
    assert "speaks TLS: give root-certificates instead of insecure" in refused(federation, "--insecure")


def test_a_client_with_another_ca_is_told_so(federation: Federation) -> None:
    line = refused(federation, "--root-certificates", "/tmp/other/ca.crt", before="fedappeal certs /tmp/other")
    assert "is not trusted by root-certificates = '/tmp/other/ca.crt'" in line


def test_a_client_by_another_name_of_the_superlink_is_told_so(federation: Federation) -> None:
    (address,) = addresses(federation, f"{federation.project}_fleet")
    line = refused(federation, *CA, "--superlink", f"{address}:9092")
    assert f"is not for the name '{address}'" in line


def addresses(federation: Federation, *networks: str) -> list[str]:
    """Return the SuperLink's address in each network."""
    inspected = json.loads(docker("inspect", federation.container("superlink")))[0]["NetworkSettings"]["Networks"]
    assert set(networks) <= set(inspected)
    return [str(inspected[network]["IPAddress"]) for network in networks]


REACH = """
import socket, sys
for host in sys.argv[1:]:
    for port in (8000, 9092, 9093, 9099):
        with socket.socket() as probe:
            probe.settimeout(2.0)
            try:
                probe.connect((host, port))
                print(host, port, "open")
            except OSError:
                print(host, port, "closed")
"""


def test_only_the_fleet_ports_can_be_reached(federation: Federation) -> None:
    superlink = federation.container("superlink")
    everywhere = addresses(federation, f"{federation.project}_fleet", f"{federation.project}_control")
    # From a client's place in the network, by name and by every address that the SuperLink has.
    seen = docker("exec", federation.clients()[0], "python", "-c", REACH, "superlink", *everywhere)
    opened = [line.split()[:2] for line in seen.splitlines() if line.endswith("open")]
    assert [port for host, port in opened if host == "superlink"] == ["9092", "9093"]  # by gRPC and by HTTP
    assert {port for _, port in opened} == {"9092", "9093"}
    # From a network of its own.
    outside = docker("run", "--rm", "--entrypoint", "python", IMAGE, "-c", REACH, *everywhere)
    assert "open" not in outside
    # From the machine: these two are published, on loopback.
    published = [line.split(" -> ") for line in docker("port", superlink).splitlines()]
    assert sorted(port for port, _ in published) == ["9092/tcp", "9093/tcp"]
    assert all(address.startswith("127.0.0.1:") for _, address in published)
    # And what listens is not there by accident: the operator's own service does reach it.
    listed = federation.compose("run", "--rm", "-T", "--no-deps", "federation", "federation", "list")
    assert "client-id" in listed


@pytest.fixture(scope="module")
def derived(image: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Images of clients that do not fit: one whose clock is ahead, one of another wire protocol."""
    recipes = {
        "clock": "RUN apt-get update -qq && apt-get install -y -qq --no-install-recommends faketime",
        "protocol": f"RUN sed -i 's/^PROTOCOL = .*/PROTOCOL = {OTHER}/' "
        "$(python -c 'import fedappeal.protocol.keys as keys; print(keys.__file__)')",
    }
    for name, recipe in recipes.items():
        folder = tmp_path_factory.mktemp(name)
        (folder / "Dockerfile").write_text(f"FROM {image}\nUSER root\n{recipe}\nUSER fedappeal\n")
        subprocess.run(["docker", "build", "-t", f"{IMAGE}-{name}", str(folder)], check=True)
    return {name: f"{IMAGE}-{name}" for name in recipes}


@pytest.fixture
def odd_client(federation: Federation, request: pytest.FixtureRequest) -> Callable[..., str]:
    """Start clients with a registered key of their own; each ends with the test."""

    def start(name: str, image: str, *arguments: str, command: tuple[str, ...] = ()) -> str:
        volumes = [f"{federation.project}_{v}:/federation/{v}" for v in ("ca", "clients")]
        mounts = [part for volume in volumes for part in ("-v", volume)]
        user = ("--user", f"{federation.env['UID']}:{federation.env['GID']}")
        key = f"/federation/clients/odd/{name}.key"
        docker("run", "--rm", *mounts, *user, IMAGE, "fedappeal", "key", key)
        register = ("federation", "register", key.replace(".key", ".pub"))
        federation.compose("run", "--rm", "-T", "--no-deps", "federation", *register)
        container = f"{federation.project}-odd-{name}"
        network = ("--network", f"{federation.project}_fleet")
        own = ("-v", f"{Path(__file__).parent / 'slow'}:/own:ro", "-e", "PYTHONPATH=/own")
        client = ["fedappeal", "client", "--superlink", "superlink:9092", *CA, *STATE, "--key", key]
        client += ["--allow", "slow_digits", "--connect-timeout", "0", *arguments]
        docker("run", "-d", "--name", container, *network, *mounts, *user, *own, image, *command, *client)
        request.addfinalizer(lambda: docker("rm", "-f", container))
        return container

    return start


def test_a_client_whose_clock_is_ahead_is_told_by_how_much(
    federation: Federation, derived: dict[str, str], odd_client: Callable[..., str]
) -> None:
    ahead = odd_client("clock", derived["clock"], "--partition-id", "0", command=("faketime", "-f", "+90s"))
    wait_until(lambda: "clock is" in docker("logs", ahead), "the client says what is wrong with its clock", 60)
    (line,) = [line for line in docker("logs", ahead).splitlines() if "clock is" in line]
    assert any(f"clock is {s} s ahead of the SuperLink at superlink:9092" in line for s in (89, 90, 91)), line
    assert "its clock is more than 5 s ahead" in docker("logs", federation.container("superlink"))


@pytest.mark.parametrize(
    ("kind", "at_client", "at_server"),
    [
        ("protocol", f"this client speaks protocol {OTHER}", f"this client speaks protocol {OTHER}"),
        ("data", "x has shape (60, 28, 28)", "data"),
    ],
)
def test_a_client_that_does_not_fit_is_left_out_and_the_run_goes_on(
    federation: Federation,
    derived: dict[str, str],
    odd_client: Callable[..., str],
    kind: str,
    at_client: str,
    at_server: str,
) -> None:
    if kind == "protocol":
        odd = odd_client(kind, derived["protocol"], "--partition-id", "0")
    else:
        make = "import numpy as np; np.savez('/tmp/x.npz', x=np.zeros((60, 28, 28), np.uint8), y=np.arange(60) % 10)"
        odd = odd_client(
            kind, IMAGE, "--data", "/tmp/x.npz", command=("sh", "-c", f'python -c "{make}" && exec "$@"', "sh")
        )
    wait_until(lambda: "connected to" in docker("logs", odd), "the odd client is connected", 60)
    run = federation.run(f"odd-{kind}", "--strategy", "fedavg", "--rounds", "2", *SLOW)
    run.finished()
    assert [line["joined"] for line in run.history] == [4, 4]
    reasons = {str(e["reason"]) for e in run.events if e["event"] == "refused"}
    print(reasons, docker("logs", odd))
    assert len(reasons) == 1
    assert at_server in reasons.pop()
    assert at_client in docker("logs", odd)
