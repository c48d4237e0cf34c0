"""A page's server: uvicorn in a thread of its own, for as long as a `with` lasts."""

import asyncio
import ipaddress
import logging
import os
import re
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from fedappeal.settings.config import ConfigError
from fedappeal.settings.model import NotHere
from fedappeal.system.socket_owner import Address, NotTold, peer_of
from fedappeal.web.access import POLICY, TOKEN, Guarded, new_token

OWNER = 64
"""Connections of the page's owner."""
OTHERS = 64
"""Connections of all others together."""
_EACH = 32
"""Connections of one of the others."""


def visitor(remote: Address | None, local: tuple[str, int | None] | None) -> int | str:
    """Return the user id at a connection's other end; its host if remote."""
    port = local[1] if local else None
    try:
        uid = peer_of(remote, (local[0], port)) if remote and local and port else None
    except (NotTold, ValueError):
        uid = None
    return uid if uid is not None else remote[0] if remote else ""


def has_slot(visitor: int | str, connected: Sequence[int | str]) -> bool:
    """Return whether a visitor may have another connection.

    Args:
        visitor: as `visitor` returns it.
        connected: the visitors of all connections so far, one each.
    """
    by_visitor = Counter(connected)
    if visitor == os.geteuid():
        return by_visitor[visitor] < OWNER
    others = by_visitor.total() - by_visitor[os.geteuid()]
    return by_visitor[visitor] < _EACH and others < OTHERS


HEADER_WAIT = 5.0
"""Seconds from a connection's beginning, or from its latest answer, until the next whole request header."""


class HeaderWait(H11Protocol):
    """A uvicorn connection with a deadline for each request header.

    Single bytes do not put it off.

    Attributes:
        visitor: whose it is, as `fedappeal.web.serving` has it.
    """

    visitor: int | str = ""
    _due: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Begin to wait for the first header, where the visitor has a slot."""
        others = [connection.visitor for connection in self.connections if isinstance(connection, HeaderWait)]
        super().connection_made(transport)
        self.visitor = visitor(self.client, self.server)
        if not has_slot(self.visitor, others):
            transport.abort()
        self._wait_or_not()

    def data_received(self, data: bytes) -> None:
        """Read data; a whole header ends the wait."""
        super().data_received(data)
        self._wait_or_not()

    def on_response_complete(self) -> None:
        """Begin to wait for the next header."""
        super().on_response_complete()
        self._wait_or_not()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no more."""
        super().connection_lost(exc)
        self._stop_waiting()

    def _wait_or_not(self) -> None:
        answering = self.cycle is not None and not self.cycle.response_complete
        if answering or self.transport.is_closing():
            self._stop_waiting()
        elif self._due is None:
            # As uvicorn ends a connection that was kept alive: what was sent before still arrives.
            self._due = self.loop.call_later(HEADER_WAIT, self.timeout_keep_alive_handler)

    def _stop_waiting(self) -> None:
        if self._due is not None:
            self._due.cancel()
            self._due = None


LOOPBACK = "127.0.0.1"
_ADDRESS = re.compile(r"(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9.-]+):([0-9]{1,5})")
_START = 10.0
"""Seconds in which the server has to stand."""
_GRACE = 1
"""Seconds that requests are given when it ends."""
_END = 5.0


@dataclass(frozen=True)
class PagePlace:
    """The address of a page.

    Attributes:
        port: where it listens; 0: the system picks one.
        host: the address of this machine that it listens at, as a number.
        published: ``HOST:PORT`` under which browsers visit it; empty: where it listens.
        setting: what the user calls the port.
    """

    port: int
    host: str = LOOPBACK
    published: str = ""
    setting: str = "page"

    @classmethod
    def parse(cls, page: str, published: str = "") -> "PagePlace":
        """Return the place that options name, checked, and free at this moment.

        Args:
            page: ``PORT`` or ``HOST:PORT``.
            published: as above.

        Raises:
            ConfigError: it is none, the port is taken, or it is not on loopback and published nowhere.
        """
        host, colon, port = page.rpartition(":")
        host = host.removeprefix("[").removesuffix("]") if colon else LOOPBACK
        try:
            ours = ipaddress.ip_address(host).is_loopback
        except ValueError:
            ours = None
        if ours is None or not (port.isascii() and port.isdigit() and len(port) <= 5):
            raise ConfigError(f"page = '{page}' is not allowed: PORT or HOST:PORT, with 0 the system picks a port")
        if not (ours or published):
            raise ConfigError(
                f"page-published is missing: page = '{page}' is not on loopback; HOST:PORT, as a browser has it"
            )
        place = cls(int(port), host, published)
        place.check()
        return place

    def check(self) -> None:
        """Check the place before a server is started.

        Errors are those of `listener`.
        """
        self.listener().close()

    def listener(self) -> socket.socket:
        """Return a socket that listens.

        Raises:
            ConfigError: the port is taken, or no port; the published address is none.
        """
        address = _ADDRESS.fullmatch(self.published)
        if self.published and not (address and 0 < int(address[1]) < 65536):
            allowed = "HOST:PORT, as a browser has it"
            raise ConfigError(f"{self.setting}-published = '{self.published}' is not allowed: {allowed}")
        if not 0 <= self.port < 65536:
            raise ConfigError(f"{self.setting} = {self.port} is not allowed: 0 (the system picks one) to 65535")
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        try:
            return socket.create_server((self.host, self.port), family=family)
        except OSError as error:
            why = f"{error.strerror or error} ({self.host}:{self.port})"
            raise NotHere(f"{self.setting} = {self.port} is not allowed: {why}") from None


@dataclass(frozen=True)
class ServedPage:
    """A page that is being served.

    Attributes:
        address: ``HOST:PORT`` under which a browser finds it.
        token: its secret.
    """

    address: str
    token: str

    @property
    def url(self) -> str:
        """The address to visit, with the token in it."""
        return f"http://{self.address}/?{TOKEN}={self.token}"


@contextmanager
def serve_page(
    app: ASGIApp, place: PagePlace, policy: str = POLICY, bodies: Mapping[str, int] = MappingProxyType({})
) -> Iterator[ServedPage]:
    """Serve a page behind its token during the block.

    Answers that are under way are then cut within a second.

    Args:
        app: the page, an ASGI app.
        place: where it stands.
        policy: Content-Security-Policy of its answers.
        bodies: as in `Guarded`.

    Raises:
        ConfigError: as `PagePlace.listener`.
    """
    with place.listener() as listener, _loggers_put_back():
        shown = f"[{place.host}]" if ":" in place.host else place.host
        page = ServedPage(place.published or f"{shown}:{listener.getsockname()[1]}", new_token())
        config = uvicorn.Config(
            Guarded(app, page.token, page.address, policy, bodies),
            http=HeaderWait,
            ws="none",
            lifespan="off",
            loop="asyncio",
            log_config=None,
            log_level=logging.CRITICAL + 1,  # `Guarded` says what fails
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=_GRACE,
        )
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, args=([listener],), name="fedappeal-page", daemon=True)
        thread.start()
        try:
            _wait_until_started(server, thread)
            yield page
        finally:
            server.should_exit = True
            thread.join(_END)
            if thread.is_alive():
                server.force_exit = True
                thread.join(_END)


@contextmanager
def _loggers_put_back() -> Iterator[None]:
    """Restore uvicorn's loggers after the block.

    This process may serve something else with it.
    """
    loggers = [logging.getLogger(f"uvicorn.{name}") for name in ("error", "access", "asgi")]
    before = [(logger, logger.level, logger.handlers, logger.propagate) for logger in loggers]
    try:
        yield
    finally:
        for logger, level, handlers, propagate in before:
            logger.setLevel(level)
            logger.handlers, logger.propagate = handlers, propagate


def _wait_until_started(server: uvicorn.Server, thread: threading.Thread) -> None:
    deadline = time.monotonic() + _START
    while not server.started:
        if not thread.is_alive() or time.monotonic() > deadline:
            raise RuntimeError("the page's server did not start")
        time.sleep(0.01)
