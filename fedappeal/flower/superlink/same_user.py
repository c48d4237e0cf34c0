"""Who may come in at a port of loopback: processes of the user who started the SuperLink."""

import os
from collections.abc import Callable
from typing import Any
from urllib.parse import unquote

import grpc  # type: ignore[import-untyped, unused-ignore]
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

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


class SameUserInterceptor(grpc.ServerInterceptor):  # type: ignore[misc, unused-ignore]
    """The Fleet API for one user (gRPC).

    Args:
        address: ``HOST:PORT`` that the server listens at, a host of loopback.
    """

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._host, self._port = host.strip("[]"), int(port)

    def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], grpc.RpcMethodHandler | None],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler | None:
        """Return a handler that checks the caller's user first.

        The Fleet API has methods of one request and one reply alone.
        """
        handler = continuation(handler_call_details)
        if handler is None:
            return None
        if handler.unary_unary is None:
            raise TypeError(f"{handler_call_details.method} streams: nothing here can refuse it")

        def guarded(request: Any, context: grpc.ServicerContext) -> Any:
            # A call whose connection has ended meanwhile is no call: its address may be another process's by now.
            if not (self._admits(context.peer()) and context.is_active()):
                context.abort(grpc.StatusCode.UNAUTHENTICATED, REFUSED)
            return handler.unary_unary(request, context)

        return grpc.unary_unary_rpc_method_handler(guarded, handler.request_deserializer, handler.response_serializer)

    def _admits(self, peer: str) -> bool:
        remote = grpc_address(peer)
        if remote is None:
            return admits(None, None, "Fleet port")
        host = self._host
        if host == "localhost":
            host = "::1" if ":" in remote[0] else "127.0.0.1"
        return admits(remote, (host, self._port), "Fleet port")


def grpc_address(peer: str) -> Address | None:
    """Return the host and port of a gRPC peer; None for other transports.

    A peer reads ``ipv4:127.0.0.1:5`` or ``ipv6:%5B::1%5D:5``.
    """
    kind, _, rest = peer.partition(":")
    host, _, port = unquote(rest).rpartition(":")
    if kind not in ("ipv4", "ipv6") or not port.isdigit():
        return None
    return host.strip("[]"), int(port)
