"""The connection of a page, with a slot for its visitor and a deadline for request headers.

uvicorn has no settings for either.
"""

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

from fedappeal.web.slots import has_slot, visitor

HEADER_WAIT = 5.0
"""Seconds from a connection's beginning, or from its latest answer, until the next whole request header."""


class HeaderWait(H11Protocol):
    """uvicorn's connection with a deadline for each request header; single bytes do not put it off.

    Attributes:
        visitor: whose it is, as `fedappeal.web.slots` has it.
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
