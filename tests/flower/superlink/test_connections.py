"""Connections to a Fleet port: how long one may take to begin, and how many there may be."""

import socket
import ssl
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path

import grpc
import pytest
from starlette.responses import PlainTextResponse

from fedappeal.federation.certificates import write_certificates
from fedappeal.flower.node.tls import unverified_context
from fedappeal.flower.superlink import connections
from fedappeal.flower.superlink.connections import GRPC_OPTIONS, make_grpc_server, serve_http
from tests.flower.superlink.test_held_polls import until

Address = tuple[str, int]


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    write_certificates(tmp_path, (), (), days=100)
    return tmp_path / "server.crt", tmp_path / "server.key"


def serve(transport: str, certificate: tuple[Path, Path]) -> Iterator[Address]:
    """Serve TLS at a port of loopback."""
    if transport == "http":
        with socket.create_server(("127.0.0.1", 0)) as listener:
            server = serve_http(PlainTextResponse("served"), listener, *map(str, certificate))
            yield listener.getsockname()
            server.should_exit = server.force_exit = True
        return
    running = make_grpc_server(grpc.server, ThreadPoolExecutor(2))
    crt, key = (file.read_bytes() for file in certificate)
    port = running.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([(key, crt)]))
    running.start()
    yield "127.0.0.1", port
    running.stop(None).wait()


def shake_hands(address: Address) -> ssl.SSLSocket:
    return unverified_context().wrap_socket(socket.create_connection(address, 20))


def is_ended(connection: socket.socket) -> bool:
    connection.setblocking(False)
    with suppress(BlockingIOError, ssl.SSLWantReadError):
        try:
            return connection.recv(1 << 16) == b""
        except ConnectionError:
            return True
    return False


def begin(address: Address, sent: bytes = b"") -> socket.socket:
    connection = socket.create_connection(address, 20)
    connection.sendall(sent)
    return connection


def drip(connection: socket.socket, ended: Callable[[], bool]) -> None:
    """Send the head of a TLS record, and then its bytes one by one."""
    connection.sendall(b"\x16\x03\x01\x40\x00\x01")
    while not ended():
        with suppress(OSError):
            connection.send(b"\x00")
        time.sleep(0.1)


@pytest.mark.parametrize("transport", ["grpc", "http"])
def test_a_handshake_is_ended_that_is_not_over_in_time(
    transport: str, certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections.FleetConnection, "begins_within", 1.0)
    faster = {"grpc.server_handshake_timeout_ms": 1000}
    assert faster.keys() <= dict(GRPC_OPTIONS).keys()
    monkeypatch.setattr(connections, "GRPC_OPTIONS", tuple(faster.items()))
    for address in serve(transport, certificate):
        with begin(address) as silent, begin(address) as dripped, ThreadPoolExecutor() as threads:
            over = threads.submit(lambda: until(lambda: is_ended(dripped)))
            threads.submit(drip, dripped, over.done)
            until(lambda: is_ended(silent))
            over.result()
        shake_hands(address).close()


def test_a_connection_over_http_is_ended_without_a_first_request(
    certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections.FleetConnection, "begins_within", 1.0)
    for address in serve("http", certificate):
        with shake_hands(address) as connection:
            connection.settimeout(20)
            assert connection.recv(1) == b""


def test_above_the_most_connections_grpc_refuses_one_and_serves_the_others(certificate: tuple[Path, Path]) -> None:
    assert dict(GRPC_OPTIONS)["grpc.max_allowed_incoming_connections"] == connections.MOST_CONNECTIONS
    with pytest.MonkeyPatch.context() as patch, ExitStack() as stack:
        patch.setattr(connections, "GRPC_OPTIONS", [("grpc.max_allowed_incoming_connections", 4)])
        for address in serve("grpc", certificate):
            first = stack.enter_context(shake_hands(address))
            others = [stack.enter_context(begin(address)) for _ in range(10)]
            until(lambda opened=others: sum(map(is_ended, opened)) == 7)
            assert not is_ended(first)
