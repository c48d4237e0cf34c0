"""Who may call a SuperLink on loopback, gRPC's words for a peer, and what they rely on of the Fleet API."""

import asyncio
import inspect
import socket
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import grpc  # type: ignore[import-untyped, unused-ignore]
import pytest
from flwr.proto import fleet_pb2_grpc

from fedappeal.flower.node.proxy import is_loopback
from fedappeal.flower.superlink import same_user
from fedappeal.flower.superlink.fleet_interceptor import FleetInterceptor
from fedappeal.flower.superlink.held_polls import HeldPolls
from fedappeal.flower.superlink.same_user import SameUserOnly, grpc_address


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


def answers(scope: dict[str, Any]) -> list[dict[str, Any]]:
    """What a request gets of the guarded application."""
    sent: list[dict[str, Any]] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        sent.append({"type": "let in"})

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(SameUserOnly(app)(scope, None, send))  # type: ignore[arg-type]
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
    monkeypatch.setattr(same_user, "peer_of", lambda remote, local: same_user.os.geteuid() + 1)
    assert not same_user.admits(("127.0.0.1", 1), ("127.0.0.1", 2), "port")
    monkeypatch.setattr(same_user, "peer_of", lambda remote, local: same_user.os.geteuid())
    assert same_user.admits(("127.0.0.1", 1), ("127.0.0.1", 2), "port")


class Call:
    """A call of the Fleet API, from this very process."""

    def __init__(self, peer: str, active: bool) -> None:
        self.peer, self.is_active = lambda: peer, lambda: active

    def abort(self, code: grpc.StatusCode, details: str) -> None:
        raise PermissionError(details)


@pytest.mark.parametrize("active", [True, False])
def test_the_grpc_door_and_a_call_whose_connection_has_ended(active: bool) -> None:
    handler = grpc.unary_unary_rpc_method_handler(lambda request, context: f"answered {request}")
    details = SimpleNamespace(method="/flwr.proto.Fleet/PullMessages", invocation_metadata=())
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname()) as client,
    ):
        server, _ = listener.accept()
        door = FleetInterceptor(HeldPolls(), "127.0.0.1:{1}".format(*listener.getsockname()))
        guarded = door.intercept_service(lambda details: handler, details)
        assert guarded is not None
        call = Call("ipv4:{}:{}".format(*client.getsockname()), active)
        with server, nullcontext() if active else pytest.raises(PermissionError, match="serves the user who"):
            assert guarded.unary_unary(1, call) == "answered 1"


def test_every_method_of_the_fleet_api_has_one_request_and_one_reply() -> None:
    methods = inspect.getsource(fleet_pb2_grpc.add_FleetServicer_to_server)
    assert methods.count("grpc.unary_unary_rpc_method_handler") == methods.count("_rpc_method_handler(") > 0
    assert callable(grpc.unary_unary_rpc_method_handler)


@pytest.mark.parametrize(
    ("listens", "peer", "local"),
    [
        ("localhost:9092", "ipv4:127.0.0.1:5", ("127.0.0.1", 9092)),
        ("localhost:9092", "ipv6:%5B::1%5D:5", ("::1", 9092)),
        ("127.0.0.2:9092", "ipv4:127.0.0.1:5", ("127.0.0.2", 9092)),
    ],
)
def test_the_address_at_which_a_peer_has_come(
    monkeypatch: pytest.MonkeyPatch, listens: str, peer: str, local: tuple[str, int]
) -> None:
    asked: list[object] = []
    monkeypatch.setattr(same_user, "peer_of", lambda remote, local: asked.append(local))
    same_user.admits_peer(listens, peer)
    assert asked == [local]
