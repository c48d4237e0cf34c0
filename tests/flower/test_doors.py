"""The doors of a SuperLink: gRPC's words for a peer, who is let in, and what Flower has to keep for them to stand."""

import asyncio
import inspect
import socket
from importlib import import_module
from typing import Any

import grpc  # type: ignore[import-untyped, unused-ignore]
import pytest
import uvicorn
from flwr.proto import fleet_pb2_grpc
from flwr.supercore.superexec.executor import subprocess_executor
from flwr.superlink import extensions, main

from fedappeal.flower import doors
from fedappeal.flower.doors import OwnUserInterceptor, OwnUserOnly, grpc_address, is_loopback
from fedappeal.flower.superlink_process import Ports, fleet_interceptors
from fedappeal.protocol.config import ConfigError

flower: Any = import_module("flwr.superlink.cli.flower_superlink")


@pytest.mark.parametrize(
    ("peer", "address"),
    [
        ("ipv4:127.0.0.1:40000", ("127.0.0.1", 40000)),
        ("ipv6:[::1]:40000", ("::1", 40000)),
        ("ipv6:%5B::1%5D:40000", ("::1", 40000)),
        ("unix:/tmp/socket", None),
        ("ipv4:127.0.0.1", None),
        ("", None),
    ],
)
def test_a_peers_address(peer: str, address: tuple[str, int] | None) -> None:
    assert grpc_address(peer) == address


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "[::1]", "localhost"])
def test_loopback(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "[::]", "192.0.2.1", "example.org", ""])
def test_what_is_not_loopback(host: str) -> None:
    assert not is_loopback(host)


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
    assert ports.fleet_is_own == own
    assert [type(each) for each in fleet_interceptors(ports, True)] == [OwnUserInterceptor] * own
    assert fleet_interceptors(ports, False) == []


def test_a_transport_that_cannot_be_guarded_is_refused() -> None:
    with pytest.raises(ConfigError, match="fleet-api-type = 'grpc-adapter' is not allowed: grpc-rere"):
        Ports.of(["--fleet-api-type", "grpc-adapter"])


def answers(scope: dict[str, Any]) -> list[dict[str, Any]]:
    """What a request gets of the guarded application."""
    sent: list[dict[str, Any]] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        sent.append({"type": "let in"})

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(OwnUserOnly(app)(scope, None, send))  # type: ignore[arg-type]
    return sent


def test_the_http_door() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname())
        server, remote = listener.accept()
    with server:
        own = {"type": "http", "client": remote, "server": server.getsockname()}
        assert answers(own) == [{"type": "let in"}]
        for other in ({"client": None}, {"server": None}, {"client": ("not a host", 1)}):
            assert [each.get("status") for each in answers(own | other)] == [403, None]
        assert answers(own | {"type": "websocket", "client": None}) == []
        client.close()
        assert answers(own)[0]["status"] == 403
    assert answers({"type": "lifespan"}) == [{"type": "let in"}]


def test_another_user_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doors, "peer_of", lambda remote, local: doors.os.geteuid() + 1)
    assert not doors.admits(("127.0.0.1", 1), ("127.0.0.1", 2), "port")
    monkeypatch.setattr(doors, "peer_of", lambda remote, local: doors.os.geteuid())
    assert doors.admits(("127.0.0.1", 1), ("127.0.0.1", 2), "port")


def test_what_the_doors_hang_on() -> None:
    """Fails where Flower names, calls or starts something in another way."""
    run = inspect.getsource(flower._run_superlink_http_api)
    assert "uvicorn.run(" in run
    assert "proxy_headers" in inspect.signature(uvicorn.run).parameters
    assert "*extensions.get_middleware()," in inspect.getsource(main._get_middleware)
    order = inspect.getsource(main._get_middleware)
    assert order.index("extensions") < order.index("Control"), "ours is outermost"
    assert extensions.get_middleware() == ()
    assert "interceptors" in inspect.signature(flower._run_fleet_api_grpc_rere).parameters
    assert '"--parent-pid"' in inspect.getsource(flower._get_superexec_command)
    launch = inspect.getsource(subprocess_executor.SubprocessExecutor.launch)
    assert launch.count("subprocess.Popen(") == 2
    assert '"--token",\n            spec.token,' in launch
    methods = inspect.getsource(fleet_pb2_grpc.add_FleetServicer_to_server)
    assert methods.count("grpc.unary_unary_rpc_method_handler") == methods.count("_rpc_method_handler(")
    assert callable(grpc.unary_unary_rpc_method_handler)
