"""Whose a socket is: open, closed, half open, IPv4 in IPv6's clothes, of another user."""

import os
import socket
import sys
from collections.abc import Iterator

import pytest

from fedappeal.system.socket_owner import NotTold, is_told, listener_of, peer_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="other systems do not say whose a socket is")
PAIRS = [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")]


@pytest.fixture(params=PAIRS, ids=["IPv4", "IPv6"])
def listener(request: pytest.FixtureRequest) -> Iterator[socket.socket]:
    family, host = request.param
    with socket.socket(family) as made:
        made.bind((host, 0))
        made.listen()
        yield made


def ends(client: socket.socket, server: socket.socket) -> tuple[tuple[str, int], tuple[str, int]]:
    return client.getsockname()[:2], server.getsockname()[:2]


def test_this_system_says_whose_a_socket_is() -> None:
    assert is_told()


def test_an_open_connection_is_its_owners_and_a_closed_one_is_no_ones(listener: socket.socket) -> None:
    client = socket.create_connection(listener.getsockname()[:2])
    server, _ = listener.accept()
    with server:
        remote, local = ends(client, server)
        assert peer_of(remote, local) == os.geteuid()
        client.sendall(b"an order")
        client.close()
        # The kernel still lists it, as root's.
        assert peer_of(remote, local) is None
        assert server.recv(20) == b"an order"
    assert peer_of(remote, local) is None


def test_a_half_closed_connection_is_no_ones(listener: socket.socket) -> None:
    with socket.create_connection(listener.getsockname()[:2]) as client:
        server, _ = listener.accept()
        with server:
            client.shutdown(socket.SHUT_WR)
            assert peer_of(*ends(client, server)) is None


def test_an_end_that_no_process_has_taken_yet_is_no_ones(listener: socket.socket) -> None:
    """The kernel has set the connection up, and lists this end as root's and without a file."""
    with socket.create_connection(listener.getsockname()[:2]) as client:
        assert peer_of(listener.getsockname()[:2], client.getsockname()[:2]) is None
        server, _ = listener.accept()
        with server:
            assert peer_of(listener.getsockname()[:2], client.getsockname()[:2]) == os.geteuid()


def test_a_listener_is_not_taken_for_a_connection(listener: socket.socket) -> None:
    own = listener.getsockname()[:2]
    assert listener_of(own) == os.geteuid()
    assert peer_of(own, own) is None
    assert peer_of(own, (own[0], 1)) is None


def test_nothing_listens_where_nothing_listens(listener: socket.socket) -> None:
    own = listener.getsockname()[:2]
    listener.close()
    assert listener_of(own) is None


@pytest.mark.parametrize("dialled", ["127.0.0.1", "::ffff:127.0.0.1"])
def test_ipv4_in_the_clothes_of_ipv6(dialled: str) -> None:
    with socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True) as listener:
        client = socket.create_connection((dialled, listener.getsockname()[1]))
        server, remote = listener.accept()
    with client, server:
        assert remote[0] == "::ffff:127.0.0.1"
        assert peer_of(remote[:2], server.getsockname()[:2]) == os.geteuid()


def test_a_kernel_that_does_not_answer_is_an_error_and_not_a_yes(monkeypatch: pytest.MonkeyPatch) -> None:
    class Confined(socket.socket):
        def __init__(self, family: int = socket.AF_INET, *rest: int) -> None:
            if family == socket.AF_NETLINK:
                raise PermissionError(1, "Operation not permitted")
            super().__init__(family, *rest)

    monkeypatch.setattr(socket, "socket", Confined)
    with pytest.raises(NotTold, match="the kernel does not say whose a socket is: Operation not permitted"):
        is_told()
