"""HTTP servers within bounds: seconds to begin, to be idle and to take for each connection; bytes of a body."""

import asyncio
import math
import socket
from functools import partial
from http import HTTPStatus
from threading import Thread
from typing import Any, ClassVar

import uvicorn
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Receive
from uvicorn.protocols.http.h11_impl import H11Protocol

_LARGEST_HEADERS = 16 << 10


class BoundedConnection(H11Protocol):
    """A connection that ends if a request or the reading of an answer is late; single bytes put nothing off.

    Attributes:
        begins_within: seconds within which a TLS handshake has to be over, and as many again until the first request.
        idle: seconds without a request.
        longest: seconds until a request is over.
    """

    begins_within: ClassVar[float]
    idle: ClassVar[float]
    longest: ClassVar[float] = math.inf

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self.access_log = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Watch a connection."""
        super().connection_made(transport)
        self._end_if_late(None, self.loop.time())

    def is_idle(self) -> bool:
        """Whether no request is under way, and all answers are sent."""
        return (self.cycle is None or self.cycle.response_complete) and not self.transport.get_write_buffer_size()

    def send_400_response(self, msg: str) -> None:
        """Refuse a request that is no HTTP.

        A call that it is part of is answered no more.
        """
        super().send_400_response(msg)
        if self.cycle is not None:
            self.cycle.disconnected = True

    def _end_if_late(self, doing: object, since: float) -> None:
        if self not in self.connections:
            return
        is_idle = self.is_idle()
        if doing != (self.cycle, is_idle):
            doing, since = (self.cycle, is_idle), self.loop.time()
        within = self.begins_within if self.cycle is None else self.idle if is_idle else self.longest
        if self.loop.time() - since > within:
            self.transport.abort()
        else:
            self.loop.call_later(self.begins_within / 2, self._end_if_late, doing, since)


class HttpServer(uvicorn.Server):
    """A server of an app, in a daemon thread of its own; `should_exit` ends it.

    Args:
        app: what it serves.
        connection: bounds each connection.
        name: of its thread.
        certificate: file of the certificate (PEM); empty: plaintext.
        key: file of its private key.
        options: further ones of uvicorn.
    """

    def __init__(
        self,
        app: ASGIApp,
        connection: type[BoundedConnection],
        name: str,
        certificate: str = "",
        key: str = "",
        **options: Any,
    ) -> None:
        config = uvicorn.Config(
            app,
            http=connection,
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            proxy_headers=False,
            server_header=False,
            h11_max_incomplete_event_size=_LARGEST_HEADERS,
            ssl_certfile=certificate or None,
            ssl_keyfile=key or None,
            **options,
        )
        config.load()  # here, where an error ends the start
        super().__init__(config)
        self._connection, self._name = connection, name

    def serve_at(self, listener: socket.socket) -> Thread:
        """Begin to serve at a bound socket; return the thread."""
        thread = Thread(target=self.run, args=([listener],), name=self._name, daemon=True)
        thread.start()
        return thread

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to accept connections, with a bound on TLS handshakes: uvicorn leaves asyncio's 60 s."""
        await super().startup([])  # all but listening
        make = partial(self._connection, self.config, self.server_state, self.lifespan.state)
        tls, within = self.config.ssl, self._connection.begins_within if self.config.ssl else None
        listen = asyncio.get_running_loop().create_server
        for listener in sockets or ():
            server = await listen(
                make, sock=listener, ssl=tls, ssl_handshake_timeout=within, backlog=self.config.backlog
            )
            self.servers.append(server)


async def read_body(receive: Receive, length: str, most: int, within: float) -> bytes:
    """Return a request's whole body.

    Args:
        receive: its source.
        length: what the request says of it (``content-length``); empty: nothing.
        most: bytes that it may have.
        within: seconds in which it has to arrive.

    Raises:
        HTTPException: it is too large, too slow, or cut short.
    """
    too_large = HTTPException(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"a body has at most {most} bytes")
    if length and not (length.isascii() and length.isdigit() and len(length) <= 12 and int(length) <= most):
        raise too_large
    body, more = bytearray(), True
    try:
        async with asyncio.timeout(within):
            while more:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise HTTPException(HTTPStatus.BAD_REQUEST, "the body was cut short")
                body += message.get("body", b"")
                more = message.get("more_body", False)
                if len(body) > most:
                    raise too_large
    except TimeoutError:
        raise HTTPException(HTTPStatus.REQUEST_TIMEOUT, "the body did not arrive in time") from None
    return bytes(body)
