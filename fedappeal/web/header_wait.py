"""The connection of a page, with a slot for its visitor and a deadline for request headers.

uvicorn has no settings for either. Some slots are the owner's alone, and no other user of the machine can have all of
the rest. The kernel says whose a connection is (`fedappeal.system.socket_owner`). One that no process of this machine
holds counts by its address: another machine's, or the one by which a container is published.
"""

import asyncio
import os
from collections import Counter
from collections.abc import Sequence
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

from fedappeal.system.socket_owner import Address, NotTold, peer_of

OWNER = 64
"""Connections of the page's owner."""
OTHERS = 64
"""Connections of all others together."""
_EACH = 32
"""Connections of one of the others."""


def visitor(remote: Address | None, local: tuple[str, int | None] | None) -> int | str:
    """Return the user id at the other end of a connection; of another machine, its host."""
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
    """uvicorn's connection with a deadline for each request header; single bytes do not put it off.

    Attributes:
        visitor: whose it is, as `fedappeal.web.header_wait` has it.
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
        """Read what came; a whole header ends the wait."""
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
