"""Whether a server speaks TLS, asked of real sockets; and how an address is split."""

import contextlib
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fedappeal.flower.node.tls import speaks_tls, split_address
from tests.client import certificates


@contextmanager
def server(context: ssl.SSLContext | None) -> Iterator[tuple[str, int]]:
    """Answer one connection: by TLS, or by closing it."""

    def serve(listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            raw, _ = listener.accept()
            (context.wrap_socket(raw, server_side=True) if context else raw).close()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, args=(listener,))
        thread.start()
        yield listener.getsockname()
        thread.join()


def test_a_server_with_any_certificate_speaks_tls_and_one_that_hangs_up_does_not(tmp_path: Path) -> None:
    expired = certificates.make(tmp_path / "tls", days=-3)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(expired.certificate, expired.key)
    with server(context) as peer:
        assert speaks_tls(peer, 10.0)
    with server(None) as peer:
        assert not speaks_tls(peer, 10.0)
    assert not speaks_tls(peer, 10.0), "nothing listens there any more"


@pytest.mark.parametrize(
    ("address", "split"),
    [("host:9092", ("host", 9092)), ("[::1]:80", ("::1", 80)), ("127.0.0.1:1", ("127.0.0.1", 1))],
)
def test_an_address_is_a_host_and_a_port(address: str, split: tuple[str, int]) -> None:
    assert split_address(address) == split
