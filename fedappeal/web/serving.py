"""A page's server: uvicorn in a thread of its own, for as long as a `with` lasts."""

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

from fedappeal.settings.address import listener
from fedappeal.settings.config import ConfigError
from fedappeal.system.http_server import BoundedConnection, HttpServer
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


class PageConnection(BoundedConnection):
    """A connection to a page, where its visitor has a slot.

    Attributes:
        visitor: whose it is, as the function `visitor` returns it.
    """

    begins_within = idle = 5.0
    visitor: int | str = ""

    def connection_made(self, transport: Any) -> None:
        """Watch a connection, unless its visitor has too many."""
        others = [connection.visitor for connection in self.connections if isinstance(connection, PageConnection)]
        super().connection_made(transport)
        self.visitor = visitor(self.client, self.server)
        if not has_slot(self.visitor, others):
            transport.abort()


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
        return listener(self.host, self.port, self.setting)


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
    with place.listener() as bound, _loggers_put_back():
        shown = f"[{place.host}]" if ":" in place.host else place.host
        page = ServedPage(place.published or f"{shown}:{bound.getsockname()[1]}", new_token())
        guarded = Guarded(app, page.token, page.address, policy, bodies)
        silent = logging.CRITICAL + 1  # `Guarded` says what fails
        options: dict[str, Any] = {"loop": "asyncio", "log_level": silent, "timeout_graceful_shutdown": _GRACE}
        server = HttpServer(guarded, PageConnection, "fedappeal-page", **options)
        thread = server.serve_at(bound)
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
    before = [logger.level for logger in loggers]
    try:
        yield
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)


def _wait_until_started(server: uvicorn.Server, thread: threading.Thread) -> None:
    deadline = time.monotonic() + _START
    while not server.started:
        if not thread.is_alive() or time.monotonic() > deadline:
            raise RuntimeError("the page's server did not start")
        time.sleep(0.01)
