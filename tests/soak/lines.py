"""A line to the SuperLink for each client, which can be cut: TCP ports of loopback that pass bytes on."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

_CHUNK = 1 << 16


class Lines:
    """One port a client, in a thread of its own.

    Args:
        count: number of clients.

    Attributes:
        ports: each client's port.
        upstream: HOST:PORT of the SuperLink; may be said later.
    """

    def __init__(self, count: int) -> None:
        self.upstream = ""
        self.ports: list[int] = []
        self._cut: set[int] = set()
        self._open: dict[int, set[asyncio.StreamWriter]] = {line: set() for line in range(count)}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="lines", daemon=True)
        self._thread.start()
        self._servers = self._call(self._listen(count))

    def cut(self, line: int) -> None:
        """Break a client's connections, and take none until `mend`."""
        self._cut.add(line)
        self._loop.call_soon_threadsafe(self._break, line)

    def mend(self, line: int) -> None:
        """Let a client connect again."""
        self._cut.discard(line)

    def close(self) -> None:
        """End."""
        self._call(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10.0)
        self._loop.close()

    def _call(self, made: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(made, self._loop).result(30.0)

    async def _listen(self, count: int) -> list[asyncio.Server]:
        servers = [await asyncio.start_server(self._taker(line), "127.0.0.1", 0) for line in range(count)]
        self.ports = [server.sockets[0].getsockname()[1] for server in servers]
        return servers

    async def _end(self) -> None:
        for server in self._servers:
            server.close()
        for line in self._open:
            self._break(line)
        await asyncio.sleep(0.1)

    def _break(self, line: int) -> None:
        for writer in self._open[line]:
            writer.transport.abort()

    def _taker(self, line: int) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[Any, Any, None]]:
        async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            host, _, port = self.upstream.rpartition(":")
            if line in self._cut or not host:
                writer.transport.abort()
                return
            try:
                up_reader, up_writer = await asyncio.open_connection(host, int(port))
            except OSError:
                writer.transport.abort()
                return
            both = {writer, up_writer}
            self._open[line] |= both
            try:
                await asyncio.gather(_pass(reader, up_writer), _pass(up_reader, writer))
            finally:
                self._open[line] -= both
                for each in both:
                    each.transport.abort()

        return take


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while chunk := await reader.read(_CHUNK):
            writer.write(chunk)
            await writer.drain()
    with suppress(OSError, RuntimeError):
        writer.write_eof()
