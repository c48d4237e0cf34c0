"""The Fleet API over HTTP against senders that mean no good; its calls are in test_fleet_api and test_held_polls."""

import hashlib
import select
import socket
import threading
import time
from base64 import b64encode
from collections.abc import Iterator
from contextlib import closing, suppress

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from flwr.common.constant import HEARTBEAT_MIN_INTERVAL
from flwr.proto.fab_pb2 import GetFabRequest
from flwr.proto.fleet_pb2 import ActivateNodeRequest, PullMessagesRequest, RegisterNodeFleetRequest
from flwr.proto.node_pb2 import Node
from flwr.supercore.primitives import asymmetric

from fedappeal.flower.node.fleet import NodeForgotten, NotConnected, Upload
from fedappeal.flower.node.fleet_api import FleetApi
from fedappeal.flower.node.fleet_http import CALLS, MEDIA_TYPE
from fedappeal.flower.node.signing import http_headers
from fedappeal.flower.superlink import connections, fleet_app
from fedappeal.flower.superlink.fleet_app import _WORKERS
from fedappeal.flower.superlink.guarded_fleet import GuardedFleet
from fedappeal.flower.superlink.request_sizes import LARGEST_REQUEST, SMALL_REQUEST
from tests.flower.conftest import Server, serve_by
from tests.flower.superlink.test_held_polls import until


@pytest.fixture
def served() -> Iterator[Server]:
    yield from serve_by("http")


def connect(server: Server) -> socket.socket:
    host, _, port = server.address.rpartition(":")
    return socket.create_connection((host, int(port)), 10)


def head(call: str, headers: dict[str, str]) -> bytes:
    lines = [f"POST {CALLS[call].path} HTTP/1.1", "host: x", *(f"{name}: {value}" for name, value in headers.items())]
    return "\r\n".join([*lines, "", ""]).encode()


def headers_of(fleet: FleetApi, **more: str) -> dict[str, str]:
    named = {name.replace("_", "-"): value for name, value in more.items()}
    return {"content-type": MEDIA_TYPE, **http_headers(fleet._sign()), **named}


def status(connection: socket.socket) -> int:
    """Return the status of what a connection answers; 0: it ends without an answer."""
    try:
        return int(connection.makefile("rb").readline().split()[1])
    except (IndexError, ConnectionError):
        return 0


def ask(server: Server, call: str, headers: dict[str, str], body: bytes = b"") -> int:
    with closing(connect(server)) as connection:
        connection.sendall(head(call, {"content-length": str(len(body)), **headers}) + body)
        return status(connection)


def register(fleet: FleetApi) -> bytes:
    return bytes(RegisterNodeFleetRequest(public_key=fleet._signer.public_key).SerializeToString())


@pytest.mark.parametrize(("known", "most", "refused"), [(False, SMALL_REQUEST, 401), (True, LARGEST_REQUEST, 413)])
def test_a_body_that_is_too_long_is_refused_before_it_is_read(
    served: Server, known: bool, most: int, refused: int
) -> None:
    fleet = served.node()[0] if known else served.fleet()
    with closing(connect(served)) as connection:
        connection.sendall(head("PushObject", headers_of(fleet, content_length=str(most + 1))))
        assert status(connection) == refused, "nothing of it was sent"
    with closing(connect(served)) as connection:
        connection.sendall(head("PushObject", headers_of(fleet, transfer_encoding="chunked")))
        try:
            for _ in range(most // 2**16 + 2):
                connection.sendall(b"10000\r\n" + bytes(2**16) + b"\r\n")
        except ConnectionError:
            return
        assert status(connection) in (refused, 0)


def test_an_upload_to_a_superlink_that_was_restarted_says_that_it_is_forgotten(served: Server) -> None:
    with pytest.raises(NodeForgotten):
        served.fleet().push_objects(1, 1, Upload("session", {"id": bytes(5 << 20)}))


def ask_for_a_run(fleet: FleetApi, node: int) -> None:
    with suppress(NotConnected):
        fleet.get_run(node, 1)


def test_heartbeats_do_not_wait_behind_other_calls(served: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    fleet, node = served.node()
    waiting, goes_on = threading.Semaphore(0), threading.Event()
    monkeypatch.setattr(GuardedFleet, "GetRun", lambda *_: waiting.release() or goes_on.wait(30))
    for _ in range(_WORKERS):
        threading.Thread(target=ask_for_a_run, args=served.node(), daemon=True).start()
    try:
        assert all(waiting.acquire(timeout=20) for _ in range(_WORKERS)), "all threads are taken"
        assert fleet.heartbeat(node, 10.0)
    finally:
        goes_on.set()


def test_what_is_not_signed_well_is_refused_with_its_body_unread(served: Server) -> None:
    fleet, other = served.fleet(), served.fleet()
    signed, others = headers_of(fleet), headers_of(other)
    name = "flwr-signature"
    for headers in (
        {"content-type": MEDIA_TYPE},
        {**signed, name: others[name]},
        {**signed, name: "no base64"},
        {**signed, "flwr-public-key": "AAAA"},
        {**signed, "flwr-public-key": b64encode(b"x" * 3000 + b"\n" + fleet._signer.public_key).decode()},
        {**signed, "flwr-timestamp": "now"},
        {**signed, "flwr-timestamp": "2020-01-01T00:00:00"},
        {**headers_of(fleet), **http_headers(fleet._signer.headers(60.0))},
        {**headers_of(fleet), **http_headers(fleet._signer.headers(-600.0))},
    ):
        with closing(connect(served)) as connection:
            connection.sendall(head("RegisterNode", {**headers, "content-length": str(LARGEST_REQUEST)}))
            assert status(connection) == 401, headers
    assert ask(served, "RegisterNode", signed, register(fleet)) == 200


def test_a_key_of_another_kind_is_refused(served: Server) -> None:
    fleet = served.fleet()
    weak = rsa.generate_private_key(public_exponent=65537, key_size=1024)
    fleet._signer.public_key = asymmetric.public_key_to_bytes(weak.public_key())  # type: ignore[arg-type]
    assert ask(served, "RegisterNode", headers_of(fleet), register(fleet)) == 401


def test_a_node_speaks_for_itself_alone(served: Server) -> None:
    fleet, other = served.fleet(), served.fleet()
    _, node = served.node()
    for call, request in (
        ("RegisterNode", RegisterNodeFleetRequest(public_key=other._signer.public_key)),
        (
            "ActivateNode",
            ActivateNodeRequest(public_key=other._signer.public_key, heartbeat_interval=HEARTBEAT_MIN_INTERVAL),
        ),
        ("PullMessages", PullMessagesRequest(node=Node(node_id=node))),
    ):
        assert ask(served, call, headers_of(fleet), request.SerializeToString()) == 401
    assert ask(served, "PullMessages", headers_of(fleet, fedappeal_hold="20"), request.SerializeToString()) == 401


def test_what_is_no_call_is_refused(served: Server) -> None:
    fleet, _ = served.node()
    body = register(fleet)
    assert ask(served, "RegisterNode", headers_of(fleet, content_type="text/plain"), body) == 415
    assert ask(served, "RegisterNode", headers_of(fleet), b"\xff\xff") == 400
    assert ask(served, "RegisterNode", headers_of(fleet), body) == 412, "Flower's own error"
    for line in (b"GET /v1/fleet/register-node", b"POST /v1/control/start-run", b"POST /docs", b"GET /health"):
        with closing(connect(served)) as connection:
            connection.sendall(line + b" HTTP/1.1\r\nhost: x\r\n\r\n")
            assert status(connection) == 404
    with closing(connect(served)) as connection:
        connection.sendall(b"POST / HTTP/1.1\r\nhost: x\r\n" + b"x: y\r\n" * 10_000)
        assert status(connection) in (400, 0), "headers are bounded"


def test_a_key_has_a_bounded_number_of_calls_at_one_time(served: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet_app, "MOST_AT_ONCE", 2)
    fleet, node = served.node()
    slow = [connect(served) for _ in range(2)]
    for connection in slow:
        connection.sendall(head("PushObject", headers_of(fleet, content_length="100")))
    until(lambda: ask(served, "RegisterNode", headers_of(fleet), register(fleet)) == 429)
    with pytest.raises(NotConnected, match="failed: HTTP 429"):
        fleet.heartbeat(node, 10.0)
    assert served.node()[0] is not None, "another key is served"
    for connection in slow:
        connection.close()
    until(lambda: ask(served, "RegisterNode", headers_of(fleet), register(fleet)) == 412)


def test_an_answer_that_is_not_read_is_a_call_of_its_key(served: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet_app, "MOST_AT_ONCE", 2)
    fleet, node = served.node()
    fab = bytes(8 << 20)
    run = served.start_run(fab=fab)
    request = GetFabRequest(node=Node(node_id=node), hash_str=hashlib.sha256(fab).hexdigest(), run_id=run)
    content = request.SerializeToString()
    unread = [connect(served) for _ in range(2)]
    for connection in unread:
        connection.sendall(head("GetFab", headers_of(fleet, content_length=str(len(content)))) + content)
        assert connection.recv(1), "it is answered"
    assert ask(served, "RegisterNode", headers_of(fleet), register(fleet)) == 429
    assert len(unread[0].makefile("rb").read(len(fab))) == len(fab)
    until(lambda: ask(served, "RegisterNode", headers_of(fleet), register(fleet)) == 412)
    for connection in unread:
        connection.close()


def test_above_the_most_connections_an_idle_one_makes_room(served: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "MOST_CONNECTIONS", 4)
    idle = [connect(served) for _ in range(8)]
    fleet, node = served.node()
    assert fleet.heartbeat(node, 10.0)
    until(lambda: len(select.select(idle, [], [], 0)[0]) >= 5)  # these were ended
    for connection in idle:
        connection.close()


def test_what_is_no_http_leaves_nothing_in_the_log(served: Server, caplog: pytest.LogCaptureFixture) -> None:
    for path in (b"/", CALLS["RegisterNode"].path.encode()):
        with closing(connect(served)) as connection:
            chunked = b" HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
            connection.sendall(b"POST " + path + chunked + b"no chunk\r\n")
            assert status(connection) == 400
    assert not [record for record in caplog.records if record.exc_info]


def test_a_slow_sender_and_a_quiet_connection_are_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections.FleetConnection, "idle", 1.0)
    monkeypatch.setattr(connections.FleetConnection, "begins_within", 1.0)
    monkeypatch.setattr(fleet_app, "LONGEST", 2.0)
    monkeypatch.setattr(fleet_app, "_SMALL_WITHIN", 0.5)
    for served in serve_by("http"):
        fleet, _ = served.node()
        began = time.monotonic()
        with closing(connect(served)) as quiet, closing(connect(served)) as trickles:
            trickles.sendall(b"POST / HTTP/1.1\r\n")
            with closing(connect(served)) as connection:
                connection.sendall(head("RegisterNode", headers_of(fleet, content_length="100")) + b"x")
                assert status(connection) == 408
            with closing(connect(served)) as connection:
                connection.sendall(
                    head("PushObject", headers_of(fleet, content_length=str(SMALL_REQUEST + 1))) + b"x"
                )
                assert status(connection) in (408, 0)
            for connection in (quiet, trickles):
                assert status(connection) == 0
        assert time.monotonic() - began < 8


def test_a_call_that_is_held_for_longer_than_a_connection_may_be_idle_is_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connections.FleetConnection, "idle", 1.0)
    monkeypatch.setattr(connections.FleetConnection, "begins_within", 0.5)
    for served in serve_by("http"):
        fleet, node = served.node()
        assert fleet.pull(node, 2.5) is None


def test_hundreds_of_idle_connections_take_no_thread_and_keep_no_one_out(served: Server) -> None:
    before = threading.active_count()
    idle = [connect(served) for _ in range(300)]
    fleet, node = served.node()
    assert fleet.heartbeat(node, 10.0)
    assert threading.active_count() - before < 20
    for connection in idle:
        connection.close()
