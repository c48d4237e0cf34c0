"""What `superlink_process` relies on: the options of `flower-superlink`, and what it calls by name."""

import inspect
import os
import socket
import sys
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import grpc
import pytest
import uvicorn
from flwr.common.constant import FLWR_INTERNAL_GRPC_CONTROL_API
from flwr.superlink import extensions, main
from flwr.superlink.routers.control import middlewares

from fedappeal.flower.superlink import runtime_fast_path, superlink_process
from fedappeal.flower.superlink.connections import make_grpc_server
from fedappeal.flower.superlink.fleet_app import FleetApp
from fedappeal.flower.superlink.held_polls import HeldPolls
from fedappeal.flower.superlink.runtime_fast_path import RuntimeFastPath
from fedappeal.flower.superlink.same_user import SameUserOnly
from fedappeal.flower.superlink.superexec import SuperExec
from fedappeal.flower.superlink.superlink_process import Ports, run_superlink
from fedappeal.flower.versions import GRPC_FLEET, SUPERNODE_SPEAKS_HTTP
from fedappeal.settings.config import ConfigError

flower: Any = import_module("flwr.superlink.cli.flower_superlink")
flower_grpc: Any = import_module("flwr.supercore.grpc")
OPTIONS = ["--insecure", "--fleet-api-address", "127.0.0.1:0"]


class Started:
    """What stood in front of Flower's code when the SuperLink was started; what it would start is recorded."""

    def __init__(self) -> None:
        self.arguments = list(sys.argv)
        self.apps: list[Any] = list(main._get_middleware())
        self.proxy_headers = getattr(flower.uvicorn.run, "keywords", {})
        self.grpc_control = os.environ.get(FLWR_INTERNAL_GRPC_CONTROL_API)
        self.grpc_fleet = os.environ.get(GRPC_FLEET)
        self.superexec = flower.subprocess.Popen
        self.grpc_server = flower_grpc.grpc.server


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Started]:
    """Where the SuperLink's state at its start is put; all that was replaced is put back after the test."""
    found: list[Started] = []
    monkeypatch.setattr(flower, "flower_superlink", lambda: found.append(Started()))
    monkeypatch.setattr(superlink_process, "guard_fleet_api", lambda *given: None)
    monkeypatch.setattr(superlink_process, "keep_objects_in_memory", lambda: None)
    monkeypatch.setattr(superlink_process, "allow_open_files", lambda: None)
    for module, name in (
        (flower, "uvicorn"),
        (extensions, "get_middleware"),
        (flower, "subprocess"),
        (sys, "argv"),
        (flower_grpc, "grpc"),
        *([(main, "fleet_router")] if SUPERNODE_SPEAKS_HTTP else []),
    ):
        monkeypatch.setattr(module, name, getattr(module, name))
    monkeypatch.setenv(FLWR_INTERNAL_GRPC_CONTROL_API, "1")
    monkeypatch.setenv(GRPC_FLEET, "0")
    return found


@pytest.fixture
def fleet(monkeypatch: pytest.MonkeyPatch, started: list[Started]) -> list[Any]:
    """The address at which gRPC serves one user; empty: it serves all."""
    made: list[Any] = []
    monkeypatch.setattr(superlink_process, "guard_fleet_api", lambda serve, own, keys: made.append(own))
    return made


@pytest.mark.parametrize(
    ("options", "own"),
    [
        ("--fleet-api-address 127.0.0.1:9092 --insecure", True),
        ("--fleet-api-address [::1]:9092 --insecure", True),
        ("--fleet-api-address 127.0.0.1:9092 --enable-supernode-auth", False),
        ("--fleet-api-address 0.0.0.0:9092 --insecure", False),
        ("--insecure", False),
        ("--simulation --insecure", False),
    ],
)
def test_the_fleet_port_is_guarded_on_loopback_where_no_key_is_asked_for(options: str, own: bool) -> None:
    ports = Ports.of(options.split())
    assert ports.host == "127.0.0.1"
    assert ports.is_own(ports.fleet) == own


def test_a_transport_that_cannot_be_guarded_is_refused() -> None:
    with pytest.raises(ConfigError, match="fleet-api-type = 'grpc-adapter' is not allowed: grpc-rere"):
        Ports.of(["--fleet-api-type", "grpc-adapter"])


def test_a_guarded_superlink_is_started_behind_its_doors(started: list[Started], fleet: list[Any]) -> None:
    run_superlink(Ports.of(OPTIONS), guarded=True)
    (start,) = started
    assert start.arguments == ["flower-superlink", *OPTIONS]
    assert [layer.cls for layer in start.apps[:2]] == [SameUserOnly, RuntimeFastPath], "the door is outermost"
    assert start.grpc_server.func is make_grpc_server
    assert start.grpc_server.args == (grpc.server,), "which others in this process call as before"
    assert start.proxy_headers == {"proxy_headers": False}
    assert (start.grpc_control, start.grpc_fleet) == (None, "1")
    assert fleet == ["127.0.0.1:0"]
    assert start.superexec is SuperExec


def test_a_superlink_that_is_not_guarded_has_no_doors(started: list[Started], fleet: list[Any]) -> None:
    run_superlink(Ports.of(OPTIONS), guarded=False)
    (start,) = started
    assert SameUserOnly not in [each.cls for each in start.apps]
    assert start.apps[0].cls is RuntimeFastPath
    assert start.grpc_control is None, "a second Control API is not served in any case"
    assert fleet == [""]
    assert start.superexec is SuperExec


@pytest.mark.parametrize("for_one_user", [True, False])
def test_the_fleet_port_over_http_has_a_door_where_it_is_for_one_user(
    monkeypatch: pytest.MonkeyPatch, for_one_user: bool
) -> None:
    served = list[tuple[Any, ...]]()
    monkeypatch.setattr(superlink_process, "serve_http", lambda *given: served.append(given))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        superlink_process._serve_http(listener, ("certificate", "key"), for_one_user, Mock(), HeldPolls())
    ((app, *rest),) = served
    assert type(app) is (SameUserOnly if for_one_user else FleetApp)
    assert rest == [listener, "certificate", "key"]


def test_a_host_that_cannot_be_guarded_is_refused(started: list[Started]) -> None:
    with pytest.raises(ConfigError, match=r"host = '0\.0\.0\.0' is not allowed: 127\.0\.0\.1 or ::1"):
        run_superlink(Ports.of([*OPTIONS, "--host", "0.0.0.0"]), guarded=True)
    assert started == []


def test_what_it_replaces_is_what_flower_calls() -> None:
    """Fails where Flower names, calls or starts something in another way."""
    assert "uvicorn.run(" in inspect.getsource(flower._run_superlink_http_api)
    assert "proxy_headers" in inspect.signature(uvicorn.run).parameters
    order = inspect.getsource(main._get_middleware)
    assert "*extensions.get_middleware()," in order
    assert order.index("extensions") < order.index("Control"), "ours is outermost"
    assert extensions.get_middleware() == ()
    for middleware in (middlewares.ControlAuthenticationMiddleware, middlewares.ControlLicenseMiddleware):
        assert "not _is_control_path(request.url.path)" in inspect.getsource(middleware.dispatch)
    assert not any(map(middlewares._is_control_path, runtime_fast_path._PATHS)), "they pass by nothing that asks"
    assert all(middlewares._is_control_path(path) for _, path in middlewares.CONTROL_SENSITIVE_ROUTE_KEYS)
    assert "server = grpc.server(" in inspect.getsource(flower_grpc.generic_create_grpc_server)
    starts = inspect.getsource(flower.SuperLinkLifespan)
    assert "_run_fleet_api_grpc_rere(" in starts
    assert "self.superexec_process = subprocess.Popen(command, **" in starts
    assert "self.superexec_process.terminate()" in starts
    assert "self.superexec_process.wait(timeout=1.0)" in starts
    assert inspect.getsource(flower).count("subprocess.Popen(") == 1
    assert flower._get_superexec_command("127.0.0.1:8000", None, None, 7, False)[0] == "flower-superexec"
    assert 'os.getenv(FLWR_INTERNAL_GRPC_CONTROL_API) == "1"' in starts


def test_a_fleet_port_that_is_taken_is_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(
            ConfigError, match=f"^fleet-api-address = '{address}' is not allowed: Address already in use"
        ):
            Ports.of(["--insecure", "--fleet-api-address", address]).listen()


@pytest.mark.parametrize(
    ("options", "database"),
    [("--database state.db", "state.db"), ("--database sqlite:////tmp/state.db", None), ("", None)],
)
def test_a_database_in_a_file_is_known(options: str, database: str | None) -> None:
    assert Ports.of([*OPTIONS, *options.split()]).database == (Path(database) if database else None)
