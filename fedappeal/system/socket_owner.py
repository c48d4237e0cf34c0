"""The user who owns a TCP socket of this machine, by the kernel's tables (Linux).

Linux answers with the user id of one socket that is named by both of its addresses (sock_diag(7), by netlink). A
socket whose process has closed it is still listed for a while, as user 0's and with no file (inode 0): it counts as
no process's. Answers are never kept: the same two addresses may belong to another process a moment later.
"""

import ipaddress
import os
import socket
import struct
import sys

from fedappeal.settings.model import Failure

Address = tuple[str, int]
"""A host as a number (``127.0.0.1``, ``::1``) and a port."""

_NETLINK_SOCK_DIAG, _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST, _NLMSG_ERROR = 4, 20, 1, 2
_ESTABLISHED, _LISTEN = 1, 10
_ANY_COOKIE = b"\xff" * 8
_HEADER = struct.Struct("=IHHII")  # length, type, flags, sequence, process
_REQUEST = struct.Struct("=BBBxI")  # family, protocol, extensions, states
_SOCKET = struct.Struct("=BB2x48x12xII")  # family, state, (timer), (addresses), (queues), user id, inode
_WAIT = 1.0


class NotTold(Failure, OSError):
    """The kernel does not say whose a socket is; the message is one line."""


def peer_of(remote: Address, local: Address) -> int | None:
    """Return the user id at a connection's other end; None if not local.

    Args:
        remote: the other end's address, as the connection has it.
        local: this end's.
    """
    state, uid, inode = _socket(remote, local)
    return uid if state == _ESTABLISHED and inode else None


def listener_of(address: Address) -> int | None:
    """Return the user id listening at an address; None if no process does."""
    nowhere = "::" if ipaddress.ip_address(address[0]).version == 6 else "0.0.0.0"  # nosec B104 # nothing listens
    state, uid, inode = _socket(address, (nowhere, 0))
    return uid if state == _LISTEN and inode else None


def is_told() -> bool:
    """Return whether this system says whose a socket is.

    Linux does, macOS has no such question.

    Raises:
        NotTold: if this is Linux and the kernel, or what confines this process, refuses to say.
    """
    if sys.platform != "linux":
        return False
    with socket.socket() as listener, socket.socket() as client:
        listener.bind(("127.0.0.1", 0))
        listener.listen(1)
        client.connect(listener.getsockname())
        if (peer := peer_of(client.getsockname(), listener.getsockname())) != os.geteuid():
            raise NotTold(
                f"the kernel says that user {peer} has a connection that this process, {os.geteuid()}, made"
            )
    return True


def _socket(this_end: Address, other_end: Address) -> tuple[int, int, int]:
    """Return state, user id and inode of a socket; zeros if there is none.

    The socket with these addresses.

    Raises:
        NotTold: if the kernel does not answer.
    """
    hosts = [_address_of(host) for host, _ in (this_end, other_end)]
    if hosts[0].version != hosts[1].version:
        return 0, 0, 0
    family = socket.AF_INET6 if hosts[0].version == 6 else socket.AF_INET
    request = b"".join(
        (
            _REQUEST.pack(family, socket.IPPROTO_TCP, 0, 0xFFFFFFFF),
            struct.pack("!HH", this_end[1], other_end[1]),
            *(host.packed.ljust(16, b"\0") for host in hosts),
            struct.pack("=I", 0),  # of any interface
            _ANY_COOKIE,
        )
    )
    header = _HEADER.pack(_HEADER.size + len(request), _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST, 1, 0)
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _NETLINK_SOCK_DIAG) as kernel:
            kernel.settimeout(_WAIT)
            kernel.send(header + request)
            answer = kernel.recv(8192)
    except OSError as error:
        raise NotTold(f"the kernel does not say whose a socket is: {error.strerror or error}") from None
    kind = _HEADER.unpack_from(answer)[1]
    if kind == _NLMSG_ERROR:  # ENOENT; what else it may be admits no one either
        return 0, 0, 0
    _, state, uid, inode = _SOCKET.unpack_from(answer, _HEADER.size)
    return state, uid, inode


def _address_of(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """Return a host's address; an IPv4-mapped one as IPv4."""
    address = ipaddress.ip_address(host)
    return getattr(address, "ipv4_mapped", None) or address
