"""Bounds on connections to the Fleet ports: their number, and seconds to begin or be idle.

gRPC bounds its connections by options, HTTP in a class of uvicorn's.
"""

import asyncio
import socket
from collections.abc import Callable, Sequence
from logging import ERROR, getLogger
from typing import Any

from starlette.types import ASGIApp

from fedappeal.system.http_server import BoundedConnection, HttpServer

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
_ERRORS = getLogger("fedappeal.fleet-http")
_ERRORS.setLevel(ERROR)  # uvicorn warns of every request that is no HTTP


def make_grpc_server(make: Callable[..., Any], *arguments: Any, options: Sequence[Any] = (), **named: Any) -> Any:
    """Return a gRPC server with these bounds.

    Of two options of one name the first counts.
    """
    return make(*arguments, options=[*GRPC_OPTIONS, *options], **named)


class FleetConnection(BoundedConnection):
    """A connection to a Fleet port over HTTP."""

    begins_within, idle, longest = BEGINS_WITHIN, IDLE, LONGEST

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self.logger = _ERRORS

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Watch a connection; one that is idle makes room above the most."""
        super().connection_made(transport)
        if len(self.connections) > MOST_CONNECTIONS:
            others: Any = self.connections - {self}
            next((other for other in others if other.is_idle()), self).transport.abort()


def serve_http(app: ASGIApp, listener: socket.socket, certificate: str = "", key: str = "") -> HttpServer:
    """Serve an app at a bound socket; return the server.

    Args:
        app: `FleetApp`, or what stands before it.
        listener: where.
        certificate: file of the certificate (PEM); empty: plaintext.
        key: file of its private key.
    """
    bounds = {"limit_concurrency": 2 * MOST_CONNECTIONS, "timeout_keep_alive": int(IDLE), "date_header": False}
    server = HttpServer(app, FleetConnection, "fleet-http", certificate, key, **bounds)
    server.serve_at(listener)
    return server
