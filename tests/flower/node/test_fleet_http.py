"""What is HTTP's alone of the Fleet API: its paths, and servers that answer in their own way; the calls are in
test_fleet_api.
"""

import http.client
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.supercore.protobuf.constants import PROTOBUF_MEDIA_TYPE
from flwr.supercore.protobuf.translation import PROTOBUF_REQUEST_TYPES

from fedappeal.flower.node import fleet as api
from fedappeal.flower.node import fleet_api
from fedappeal.flower.node.fleet_http import CALLS, MEDIA_TYPE, HttpFleet
from fedappeal.flower.versions import SUPERNODE_SPEAKS_HTTP
from tests.flower.conftest import Server, serve_by

OK = b"HTTP/1.1 200 OK\r\n"


def test_the_calls_are_those_of_flower() -> None:
    assert MEDIA_TYPE == PROTOBUF_MEDIA_TYPE
    flowers = {path: kind for (_, path), kind in PROTOBUF_REQUEST_TYPES.items() if path.startswith("/v1/fleet/")}
    assert flowers == ({call.path: call.request for call in CALLS.values()} if SUPERNODE_SPEAKS_HTTP else {})
    assert len(CALLS) == 12


class Answering:
    """A server that answers each request with the same bytes, and then does as it likes."""

    def __init__(self, answer: bytes, closes: bool = True) -> None:
        self.answer, self.closes, self.accepted = answer, closes, 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self._accept, daemon=True).start()
        key, port = ec.generate_private_key(ec.SECP256R1()), self._listener.getsockname()[1]
        self.fleet = HttpFleet(f"127.0.0.1:{port}", key, insecure=True, root_certificates=None)

    def _accept(self) -> None:
        while True:
            try:
                peer, _ = self._listener.accept()
            except OSError:
                return
            self.accepted += 1
            threading.Thread(target=self._serve, args=(peer,), daemon=True).start()

    def _serve(self, peer: socket.socket) -> None:
        try:
            requests = peer.makefile("rb")
            while head := list(iter(requests.readline, b"\r\n")):
                requests.read(next(int(line[15:]) for line in head if line.startswith(b"Content-Length:")))
                closes = self.closes  # as it is before the client has the answer, and may change it
                peer.sendall(self.answer)
                if closes:
                    break
        except OSError:
            pass
        if self.closes:
            peer.close()

    def end(self) -> None:
        self.fleet.close()
        self._listener.close()


@pytest.fixture
def answering(request: pytest.FixtureRequest) -> Iterator[Answering]:
    server = Answering(request.param)
    yield server
    server.end()


@pytest.mark.parametrize(
    ("answering", "error", "said"),
    [
        (b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n", api.NotAdmitted, "is no Fleet API over HTTP"),
        (b"HTTP/1.1 403 No\r\ncontent-length: 4\r\n\r\nours", api.NotAdmitted, "does not admit this node: ours"),
        (b"HTTP/1.1 302 Go\r\nlocation: http://x\r\ncontent-length: 0\r\n\r\n", api.NotConnected, "failed: HTTP 302"),
        (b"HTTP/1.1 503 Busy\r\ncontent-length: 0\r\n\r\n", api.NotAnswering, "does not answer any more"),
        (OK + b"content-length: 9\r\n\r\nhalf", api.NotAnswering, "does not answer any more"),
        (OK + b"\r\nas long as the connection", api.NotAnswering, "does not answer any more"),
        (OK + b"content-length: 4\r\n\r\n\xff\xff\xff\xff", api.NotConnected, "what came is no answer"),
        (b"SSH-2.0\r\n", api.NotAnswering, "does not answer any more"),
        (OK + b"x: y\r\n" * 1000 + b"\r\n", api.NotAnswering, "does not answer any more"),
    ],
    indirect=["answering"],
)
def test_what_is_no_answer_is_an_error_in_one_line(answering: Answering, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        answering.fleet.heartbeat(1, 10.0)


@pytest.mark.parametrize(
    "answering",
    [
        OK + b"content-length: 999\r\n\r\n" + bytes(999),
        OK + b"transfer-encoding: chunked\r\n\r\n3e7\r\n" + bytes(999),
    ],
    indirect=True,
)
def test_an_answer_above_the_largest_is_not_read(answering: Answering, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet_api, "LARGEST_OBJECT", 500)
    with pytest.raises(api.ObjectTooLarge):
        answering.fleet.heartbeat(1, 10.0)


@pytest.mark.parametrize(
    ("first", "then"),
    [
        (OK + b"content-length: 999\r\n\r\n", b"x"),
        (OK + b"connection: close\r\ncontent-length: 999\r\n\r\n", b"x"),
        (OK + b"x: ", b"y"),
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    ],
)
def test_an_answer_that_comes_a_little_at_a_time_ends_in_time(first: bytes, then: bytes) -> None:
    server = Answering(b"")

    def drip(peer: socket.socket) -> None:
        try:
            peer.sendall(first)
            while True:
                peer.sendall(then)
                time.sleep(0.1)
        except OSError:
            pass

    server._serve = drip  # type: ignore[method-assign]
    began = time.monotonic()
    with pytest.raises(api.NotAnswering):
        server.fleet.deactivate(1, 0.5)
    assert time.monotonic() - began < 8
    server.end()


def test_a_long_refusal_is_read_no_further(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths = list[int]()
    monkeypatch.setattr(fleet_api, "known_error", lambda text: lengths.append(len(text)))
    text = b"no " * 100_000
    server = Answering(b"HTTP/1.1 500 No\r\ncontent-length: %d\r\n\r\n%s" % (len(text), text))
    with pytest.raises(api.NotConnected, match="failed: HTTP 500 no no"):
        server.fleet.heartbeat(1, 10.0)
    server.end()
    assert 0 < lengths[0] < 20_000


def test_connections_are_used_again_and_replaced_where_the_superlink_ended_them() -> None:
    server = Answering(OK + b"content-length: 2\r\n\r\n\x08\x01", closes=False)
    assert all(server.fleet.heartbeat(1, 10.0) for _ in range(5))
    assert server.accepted == 1
    server.closes = True
    assert server.fleet.heartbeat(1, 10.0)
    time.sleep(0.1)
    (ended,) = server.fleet._idle
    assert server.fleet.heartbeat(1, 10.0), "it was seen before anything was sent"
    assert server.accepted == 2
    assert ended.sock is None
    server.end()


@pytest.mark.parametrize(
    "answering",
    [OK + b"content-length: 9\r\n\r\nhalf", OK + b"connection: close\r\n\r\nwhole", b"SSH-2.0\r\n"],
    indirect=True,
)
def test_a_connection_whose_answer_is_not_whole_is_closed_and_not_used_again(answering: Answering) -> None:
    connections = list[http.client.HTTPConnection]()
    make = answering.fleet._make
    answering.fleet._make = lambda: connections.append(make()) or connections[-1]  # type: ignore[func-returns-value]
    for _ in range(2):
        with pytest.raises((api.NotAnswering, api.NotConnected)):
            answering.fleet.heartbeat(1, 10.0)
    assert [connection.sock for connection in connections] == [None, None], "each call had its own; both are closed"
    assert not answering.fleet._idle


def test_a_call_about_an_object_asks_nobody_to_hold_it() -> None:
    server, heads = Answering(OK + b"content-length: 0\r\n\r\n", closes=False), list[tuple[str, float]]()
    post = server.fleet._post

    def posted(connection: Any, path: str, content: bytes, headers: Any, timeout: float) -> Any:
        heads.append((dict(headers).get(api.HOLD_HEADER), timeout))
        return post(connection, path, content, headers, timeout)

    server.fleet._post = posted  # type: ignore[method-assign]
    server.fleet._begin("PullObject", CALLS["PullObject"].request()).result(10)
    server.fleet._begin("PullMessages", CALLS["PullMessages"].request(), 7.0).result(10)
    server.end()
    assert heads == [(None, fleet_api.OBJECT_TIMEOUT), ("7", fleet_api.TIMEOUT)]


def test_closing_ends_a_held_poll() -> None:
    for server in serve_by("http"):
        assert isinstance(server, Server)
        fleet, node = server.node()
        threading.Timer(0.5, fleet.close).start()
        began = time.monotonic()
        with pytest.raises(api.NotAnswering):
            fleet.pull(node, api.LONGEST_HOLD)
        assert time.monotonic() - began < api.LONGEST_HOLD / 2
