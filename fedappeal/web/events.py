"""Server-sent events: what changes, told to every open page.

A page that reads slowly never holds up the teller.
"""

import asyncio
import json
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from http import HTTPStatus

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

Whole = Callable[[], tuple[str, object]]
"""Returns the name and the data (JSON) of an event that says everything; called in the server's thread."""


class Events:
    """The events of open pages.

    A page is told everything first; then each change. A page for which too many changes wait is told everything
    again in their place.

    Args:
        whole: returns the event that says everything.
        most_readers: open pages; a further one is refused.
        longest: changes that may wait for one page.
        heartbeat: seconds of silence after which a sign of life is sent, which finds out pages that are gone.
    """

    def __init__(self, whole: Whole, most_readers: int = 16, longest: int = 64, heartbeat: float = 15.0) -> None:
        self._whole = whole
        self._most_readers, self._longest, self._heartbeat = most_readers, longest, heartbeat
        self._lock = threading.Lock()
        self._readers: set[_Reader] = set()

    @property
    def readers(self) -> int:
        """The number of open pages."""
        return len(self._readers)

    def tell(self, name: str, data: object) -> None:
        """Tell all open pages of a change, from any thread, without waiting."""
        text = _event(name, data)
        with self._lock:
            for reader in self._readers:
                reader.put(text, self._longest)

    async def endpoint(self, request: Request) -> Response:
        """Answer a page that listens: the route of the events."""
        reader = _Reader(asyncio.get_running_loop())
        with self._lock:
            if len(self._readers) >= self._most_readers:
                return PlainTextResponse(
                    f"at most {self._most_readers} pages are open at once\n", HTTPStatus.SERVICE_UNAVAILABLE
                )
            self._readers.add(reader)
        return _Stream(self._events(reader), lambda: self._dismiss(reader))

    async def _events(self, reader: "_Reader") -> AsyncIterator[str]:
        while True:
            behind, texts = reader.take(self._lock)
            if behind:
                yield _event(*self._whole())  # made after the changes were taken: all of them are in it
            else:
                for text in texts:
                    yield text
            try:
                async with asyncio.timeout(self._heartbeat):
                    await reader.fresh.wait()
            except TimeoutError:
                yield ": still here\n\n"

    def _dismiss(self, reader: "_Reader") -> None:
        with self._lock:
            self._readers.discard(reader)


class _Reader:
    """An open page, and its waiting texts.

    Attributes:
        fresh: set where something waits.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.fresh = asyncio.Event()
        self._loop = loop
        self._behind = True
        self._waiting: deque[str] = deque()

    def put(self, text: str, longest: int) -> None:
        """Add a text, under the lock of the events."""
        if len(self._waiting) >= longest:
            self._waiting.clear()
            self._behind = True
        else:
            self._waiting.append(text)
        with suppress(RuntimeError):  # the server has ended
            self._loop.call_soon_threadsafe(self.fresh.set)

    def take(self, lock: threading.Lock) -> tuple[bool, list[str]]:
        """Return whether the page needs everything, and its waiting texts, which are removed."""
        with lock:
            self.fresh.clear()
            behind, self._behind = self._behind, False
            texts = list(self._waiting)
            self._waiting.clear()
            return behind, texts


class _Stream(StreamingResponse):
    """A stream of events that says when it has ended, however it ends."""

    def __init__(self, texts: AsyncIterator[str], on_end: Callable[[], None]) -> None:
        super().__init__(texts, media_type="text/event-stream", headers={"X-Accel-Buffering": "no"})
        self._on_end = on_end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._on_end()


def _event(name: str, data: object) -> str:
    return f"event: {name}\ndata: {json.dumps(data, separators=(',', ':'))}\n\n"
