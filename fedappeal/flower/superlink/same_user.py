"""Who may come in at a port of loopback: processes of the user who started the SuperLink."""

import os
from urllib.parse import unquote

from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from fedappeal.flower.node.tls import split_address
from fedappeal.flower.superlink.superlink_log import RateLimitedLog
from fedappeal.system.socket_owner import Address, NotTold, peer_of

REFUSED = "this SuperLink serves the user who started it alone"
"""What a process of another user is told."""

_LOG = RateLimitedLog()


def admits(remote: Address | None, local: Address | None, port: str) -> bool:
    """Return whether a connection's other end is this process's user; log a refusal.

    Args:
        remote: its address; None: it has none.
        local: this end's.
        port: what the port is called.
    """
    try:
        uid = peer_of(remote, local) if remote and local else None
    except (NotTold, ValueError) as error:
        _LOG.warn(f"refused at the {port}: {error}")
        return False
    if uid != os.geteuid():
        who = "a connection that no process of this machine holds" if uid is None else f"a process of user {uid}"
        _LOG.warn(f"refused at the {port}: {who}")
        return False
    return True


class SameUserOnly:
    """An ASGI app that serves one user only.

    It is outermost, so that nothing of a request is read before.

    The server must not let headers replace the peer's address (uvicorn: ``proxy_headers=False``).

    Args:
        app: what it stands before.
        port: what the port is called.
    """

    def __init__(self, app: ASGIApp, port: str = "Control port") -> None:
        self._app, self._port = app, port

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] == "lifespan" or admits(scope.get("client"), scope.get("server"), self._port):
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            await PlainTextResponse(REFUSED, 403, {"connection": "close"})(scope, receive, send)


def admits_peer(address: str, peer: str) -> bool:
    """Return whether a gRPC call's other end is this process's user; log a refusal.

    Args:
        address: ``HOST:PORT`` that the server listens at, a host of loopback.
        peer: the call's, as gRPC writes it.
    """
    remote, (host, port) = grpc_address(peer), split_address(address)
    if remote is None:
        return admits(None, None, "Fleet port")
    if host == "localhost":
        host = "::1" if ":" in remote[0] else "127.0.0.1"
    return admits(remote, (host, port), "Fleet port")


def grpc_address(peer: str) -> Address | None:
    """Return the host and port of a gRPC peer; None for other transports.

    A peer reads ``ipv4:127.0.0.1:5`` or ``ipv6:%5B::1%5D:5``.
    """
    kind, _, rest = peer.partition(":")
    host, _, port = unquote(rest).rpartition(":")
    if kind not in ("ipv4", "ipv6") or not port.isdigit():
        return None
    return host.strip("[]"), int(port)
