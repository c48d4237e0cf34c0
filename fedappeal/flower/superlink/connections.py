"""Bounds on connections to the Fleet ports: their number, and seconds to begin or be idle.

gRPC bounds its connections by options, HTTP in a class of uvicorn's.
"""

import asyncio
import socket
import threading
from collections.abc import Callable, Sequence
from functools import partial
from logging import ERROR, getLogger
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

MOST_CONNECTIONS = 8192
"""Connections of each port, above which gRPC refuses a new one and over HTTP an idle one makes room."""
BEGINS_WITHIN = 20.0
"""Seconds within which a TLS handshake has to be over; over HTTP as many again until the first request."""
IDLE, LONGEST = 60.0, 600.0
"""Seconds after which a connection without a request is ended, and over HTTP one whose request is not over."""
GRPC_OPTIONS = (
    ("grpc.max_allowed_incoming_connections", MOST_CONNECTIONS),
    ("grpc.server_handshake_timeout_ms", int(1000 * BEGINS_WITHIN)),
    ("grpc.max_connection_idle_ms", int(1000 * IDLE)),
)
_LARGEST_HEADERS = 16 << 10
_ERRORS = getLogger("fedappeal.fleet-http")
_ERRORS.setLevel(ERROR)  # uvicorn warns of every request that is no HTTP


def make_grpc_server(make: Callable[..., Any], *arguments: Any, options: Sequence[Any] = (), **named: Any) -> Any:
    """Return a gRPC server with these bounds.

    Of two options of one name the first counts.
    """
    return make(*arguments, options=[*GRPC_OPTIONS, *options], **named)


class _Connection(H11Protocol):
    """A connection that ends if a request or the reading of an answer is late."""

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self.access_log = False
        self.logger = _ERRORS

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Watch a connection; one that is idle makes room above the most."""
        super().connection_made(transport)
        if len(self.connections) > MOST_CONNECTIONS:
            others: Any = self.connections - {self}
            next((other for other in others if other._is_idle()), self).transport.abort()
        self._look(None, self.loop.time())

    def _is_idle(self) -> bool:
        return (self.cycle is None or self.cycle.response_complete) and not self.transport.get_write_buffer_size()

    def send_400_response(self, msg: str) -> None:
        """Refuse a request that is no HTTP.

        A call that it is part of is answered no more.

        A call that it is part of is answered no more.
        """
        super().send_400_response(msg)
        if self.cycle is not None:
            self.cycle.disconnected = True

    def _look(self, doing: object, since: float) -> None:
        if self not in self.connections:
            return
        is_idle = self._is_idle()
        if doing != (self.cycle, is_idle):
            doing, since = (self.cycle, is_idle), self.loop.time()
        within = BEGINS_WITHIN if self.cycle is None else IDLE if is_idle else LONGEST
        if self.loop.time() - since > within:
            self.transport.abort()
        else:
            self.loop.call_later(BEGINS_WITHIN / 2, self._look, doing, since)


class _Server(uvicorn.Server):
    """A server that bounds the time of a TLS handshake.

    uvicorn leaves asyncio's 60 s.
    """

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to accept connections."""
        await super().startup([])  # all but listening
        make = partial(_Connection, self.config, self.server_state, self.lifespan.state)
        tls, within = self.config.ssl, BEGINS_WITHIN if self.config.ssl else None
        listen = asyncio.get_running_loop().create_server
        for listener in sockets or ():
            server = await listen(
                make, sock=listener, ssl=tls, ssl_handshake_timeout=within, backlog=self.config.backlog
            )
            self.servers.append(server)


def serve_http(app: ASGIApp, listener: socket.socket, certificate: str = "", key: str = "") -> uvicorn.Server:
    """Serve an app in a daemon thread; return the server, which can end it.

    Args:
        app: `FleetApp`, or what stands before it.
        listener: where; bound already.
        certificate: file of the certificate (PEM); empty: plaintext.
        key: file of its private key.
    """
    config = uvicorn.Config(
        app,
        http=_Connection,
        ws="none",
        lifespan="off",
        interface="asgi3",
        log_config=None,
        proxy_headers=False,
        server_header=False,
        date_header=False,
        limit_concurrency=2 * MOST_CONNECTIONS,
        timeout_keep_alive=int(IDLE),
        h11_max_incomplete_event_size=_LARGEST_HEADERS,
        ssl_certfile=certificate or None,
        ssl_keyfile=key or None,
    )
    config.load()  # here, where an error ends the start
    server = _Server(config)
    threading.Thread(target=server.run, args=([listener],), name="fleet-http", daemon=True).start()
    return server
