"""Promise: what a stranger does to the TLS of a Fleet port keeps no registered client out, and fills no memory."""

import shutil
import socket
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import psutil
import pytest

from client.fleet.connection import FleetConnection
from client.settings import Connection
from fedappeal.flower.node.fleet import NotConnected
from fedappeal.flower.node.tls import split_address, unverified_context
from tests.federation.conftest import Federation

SOCKETS = 200
MOST_MEMORY = 64 << 20
"""Bytes that the SuperLink may take more for that many connections."""


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """A SuperLink with TLS that serves gRPC and HTTP, and admits key 0 alone."""
    running = Federation(tmp_path_factory.mktemp("tls"), http=True)
    try:
        running.superlink.start()
        assert running.register("0").code == 0
        yield running
    finally:
        running.end()


@pytest.fixture(params=["grpc", "http"])
def address(federation: Federation, request: pytest.FixtureRequest) -> str:
    return federation.superlink.fleet_address if request.param == "grpc" else federation.superlink.http_address


def at(federation: Federation, address: str, **other: object) -> Connection:
    ca, key = federation.certs / "ca.crt", federation.key("0")
    settings: dict[str, object] = {"superlink": address, "root_certificates": str(ca), "key": str(key)}
    return Connection.model_validate(settings | other)


def check_served(federation: Federation, address: str) -> None:
    """Check that a registered client connects now."""
    with closing(FleetConnection(at(federation, address))) as client:
        assert client._fleet.heartbeat(client.node_id, 10.0)


def hello() -> bytes:
    """Return what a TLS client says first."""
    out = ssl.MemoryBIO()
    secure = unverified_context().wrap_bio(ssl.MemoryBIO(), out)
    with pytest.raises(ssl.SSLWantReadError):
        secure.do_handshake()
    return out.read()


@pytest.mark.parametrize("sent", [b"", hello()[:40], hello()], ids=["nothing", "half a hello", "a hello"])
def test_handshakes_that_never_end_keep_no_client_out(federation: Federation, address: str, sent: bytes) -> None:
    process = psutil.Process(federation.superlink.pid)
    before = process.memory_info().rss
    with ExitStack() as stack:
        for _ in range(SOCKETS):
            stack.enter_context(socket.create_connection(split_address(address), 10)).sendall(sent)
        check_served(federation, address)
        assert process.memory_info().rss - before < MOST_MEMORY
    check_served(federation, address)


def test_plaintext_and_garbage_at_a_port_with_tls_keep_no_client_out(federation: Federation, address: str) -> None:
    request = b"POST /v1/fleet/pull-messages HTTP/1.1\r\nhost: x\r\ncontent-length: 9999999\r\n\r\n"
    for sent in (request, bytes(1 << 16), b"\x16\x03\x01\xff\xff" + b"x" * (1 << 16)):
        for _ in range(20):
            with socket.create_connection(split_address(address), 10) as raw:
                try:
                    raw.sendall(sent)
                    while raw.recv(1 << 16):
                        pass
                except ConnectionError:
                    pass
    check_served(federation, address)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1])
def test_an_old_tls_is_refused(federation: Federation, address: str, version: ssl.TLSVersion) -> None:
    old = unverified_context()
    old.set_ciphers("ALL:@SECLEVEL=0")
    old.minimum_version = ssl.TLSVersion.TLSv1_2
    with socket.create_connection(split_address(address), 10) as raw, old.wrap_socket(raw) as secure:
        assert secure.version() in ("TLSv1.2", "TLSv1.3"), "this context is refused for its version alone"
    old.minimum_version = old.maximum_version = version
    with socket.create_connection(split_address(address), 10) as raw, pytest.raises((ssl.SSLError, ConnectionError)):
        old.wrap_socket(raw)


@pytest.mark.skipif(not shutil.which("openssl"), reason="no openssl here")
def test_a_client_cannot_make_the_server_negotiate_again(federation: Federation, address: str) -> None:
    command = ["openssl", "s_client", "-tls1_2", "-alpn", "h2,http/1.1", "-connect", address]
    said = subprocess.run(command, input=b"R\nR\nR\n", capture_output=True, timeout=60, check=False)
    assert b"RENEGOTIATING" in said.stderr
    assert said.returncode != 0, "the handshake failed"
    check_served(federation, address)


def test_a_client_that_is_not_let_in_says_why_in_one_line(
    federation: Federation, address: str, tmp_path: Path
) -> None:
    other = Federation(tmp_path).certs / "ca.crt"
    for settings, why in (
        ({"root_certificates": str(other)}, "is not trusted by root-certificates"),
        (
            {"insecure": True, "root_certificates": "", "key": ""},
            "speaks TLS: give root-certificates instead of insecure",
        ),
        ({"key": str(federation.key("unknown"))}, "does not admit this node's key"),
        ({"key": ""}, "admits registered keys only"),
    ):
        with pytest.raises(NotConnected, match=why) as refused:
            FleetConnection(at(federation, address, **settings))
        assert "\n" not in str(refused.value)
