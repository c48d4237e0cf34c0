"""The small things around the SuperLink's container: folders' owners, health, a replica's options."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from pathlib import Path

import grpc
import pytest
import typer.main
from grpc_health.v1.health import HealthServicer
from grpc_health.v1.health_pb2 import HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import add_HealthServicer_to_server

from client.process.heartbeat import Heartbeat
from fedappeal.cli.client import client_app
from fedappeal.cli.options import take_variables
from fedappeal.containers.health import problem
from fedappeal.containers.log import tell
from fedappeal.containers.prepare import OWNED, addresses, change_owner, change_owner_of_runs, close, hand_out, number
from fedappeal.containers.replica import ReplicaSlot, client_arguments
from fedappeal.federation.certificates import write_certificates
from fedappeal.federation.folder import Addresses
from fedappeal.settings.config import ConfigError


@pytest.fixture
def server() -> Iterator[tuple[str, HealthServicer]]:
    health = HealthServicer()
    running = grpc.server(ThreadPoolExecutor(1))
    add_HealthServicer_to_server(health, running)
    port = running.add_insecure_port("127.0.0.1:0")
    running.start()
    yield f"127.0.0.1:{port}", health
    running.stop(None).wait()


def test_health_is_what_the_server_says(server: tuple[str, HealthServicer]) -> None:
    address, health = server
    health.set("", HealthCheckResponse.SERVING)
    assert problem(address) is None
    health.set("", HealthCheckResponse.NOT_SERVING)
    assert problem(address) == f"{address} answers NOT_SERVING"


def test_a_server_that_is_not_there_is_not_healthy() -> None:
    assert problem("127.0.0.1:1", timeout=5.0) == "127.0.0.1:1 does not answer: UNAVAILABLE"


def test_a_process_with_a_heartbeat_is_healthy_while_it_says_so(tmp_path: Path) -> None:
    file = tmp_path / "heartbeat"
    command = [sys.executable, "-m", "fedappeal.containers.alive", str(file)]
    asked = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert (asked.returncode, "cannot be read" in asked.stderr) == (1, True)
    heartbeat = Heartbeat(file)
    assert subprocess.run(command, capture_output=True, timeout=240).returncode == 1
    heartbeat.beat(60.0)
    assert subprocess.run(command, capture_output=True, timeout=240).returncode == 0


def test_a_containers_own_lines_are_as_its_log_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tell("this replica is client 1")
    assert capsys.readouterr().out == "this replica is client 1\n"
    monkeypatch.setenv("LOG_FORMAT", "json")
    tell("struck off", client="anna")
    found = json.loads(capsys.readouterr().out)
    assert (found["message"], found["client"], found["level"]) == ("struck off", "anna", "info")
    monkeypatch.setenv("LOG_FORMAT", "xml")
    with pytest.raises(ConfigError, match="log-format = 'xml' is not allowed: text, json"):
        tell("x")


def test_a_folder_of_results_that_belongs_to_another_user_is_an_error_that_says_what_to_set(tmp_path: Path) -> None:
    if os.getuid() == 0:
        os.chown(tmp_path, 4242, 4243)
    owner = tmp_path.stat()
    with pytest.raises(ConfigError, match=f"belongs to user {owner.st_uid}; put UID={owner.st_uid} and GID="):
        change_owner_of_runs(tmp_path, owner.st_uid + 1, owner.st_gid)
    change_owner_of_runs(tmp_path, owner.st_uid, owner.st_gid)
    assert tmp_path.stat() == owner


def test_folders_that_are_owned_already_are_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "chown", lambda *arguments, **options: pytest.fail("chown"))
    change_owner([tmp_path], os.getuid(), os.getgid())


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give files away")
def test_what_docker_made_as_root_is_given_to_the_user(tmp_path: Path) -> None:
    (tmp_path / "volume" / "folder").mkdir(parents=True)
    (tmp_path / "volume" / "folder" / "file").touch()
    (tmp_path / "runs").mkdir()
    change_owner([tmp_path / "volume"], 1234, 1235)
    change_owner_of_runs(tmp_path / "runs", 1234, 1235)
    owners = {(p.stat().st_uid, p.stat().st_gid) for p in tmp_path.rglob("*")}
    assert owners == {(1234, 1235)}


def test_volumes_with_keys_and_states_are_their_owners_alone(tmp_path: Path) -> None:
    for name in OWNED:
        (tmp_path / name).mkdir(mode=0o755)
    close(tmp_path)
    modes = {name: oct((tmp_path / name).stat().st_mode & 0o777) for name in OWNED}
    assert modes == {**dict.fromkeys(OWNED, "0o700"), "ca": "0o755"}


def test_a_replica_is_a_client_with_its_slots_key_share_and_state() -> None:
    slot = ReplicaSlot(7, Path("/clients/07"))
    said = client_arguments(slot, "superlink:9092", Path("/ca.crt"), ["--device", "cpu"])
    assert said[0] == "client"
    assert dict(zip(said[1::2], said[2::2], strict=True)) == {
        "--superlink": "superlink:9092",
        "--root-certificates": "/ca.crt",
        "--key": "/clients/07/client.key",
        "--partition-id": "7",
        "--state-dir": "/clients/07/state",
        "--connect-timeout": "0",
        "--device": "cpu",
    }


def test_a_replicas_owner_says_in_the_environment_what_it_allows_and_how_it_decides(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    environment = {"ALLOW": "mine,theirs", "PARTICIPATION": "defect", "SET": "defect.leave-below=0.3", "DEVICE": ""}
    environment["LIMITS"] = "max-steps=2000 min-batch=4"
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    command = deepcopy(typer.main.get_command(client_app))
    take_variables(command)
    said = command.make_context("client", []).params
    unset = typer.main.get_command(client_app).make_context("client", []).params
    assert {name: value for name, value in said.items() if value != unset[name]} == {
        "allow": ("mine,theirs",),
        "participation": "defect",
        "set": ("defect.leave-below=0.3",),
        "limits": "max-steps=2000 min-batch=4",
    }
    assert command.make_context("client", ["--limits", "off"]).params["limits"] == "off", "what is given wins"


def test_the_cas_key_is_handed_out_to_no_container(tmp_path: Path) -> None:
    for volume in OWNED:
        (tmp_path / volume).mkdir()
    write_certificates(tmp_path / "authority", ["superlink"], [], 825)
    hand_out(tmp_path)
    assert {p.name for p in (tmp_path / "certificates").iterdir()} == {"ca.crt", "server.crt", "server.key"}
    assert {p.name for p in (tmp_path / "ca").iterdir()} == {"ca.crt"}
    key = tmp_path / "certificates" / "server.key"
    assert key.stat().st_mode & 0o777 == 0o600
    assert key.read_bytes() == (tmp_path / "authority" / "server.key").read_bytes()


def test_an_invitation_names_what_is_published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JOIN_PORT", "19094")
    monkeypatch.setenv("FLEET_PORT", "")
    ca = str(tmp_path / "ca" / "ca.crt")
    expected = Addresses("control:8000", ca, "fed.example.org:9092", "fed.example.org:19094")
    assert addresses(tmp_path, ["fed.example.org", "192.0.2.7"]) == expected
    assert addresses(tmp_path, []).join == "localhost:19094"


@pytest.mark.parametrize("value", ["ann", "", "-1"])
def test_a_user_that_is_no_number_is_an_error(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UID", value)
    with pytest.raises(ConfigError, match=f"UID = '{value}' is not allowed"):
        number("UID")
