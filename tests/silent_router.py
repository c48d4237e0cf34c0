"""A router that forgets its connections: packets vanish both ways, no reset comes, and new connections pass."""

import contextlib
import socket
import threading
from collections.abc import Iterator


class SilentRouter:
    """Forwards connections to a server; a forgotten one stays open and carries nothing more.

    Attributes:
        address: where it listens.
        passed: connections that it carries now.
    """

    def __init__(self, server: str) -> None:
        host, _, port = server.rpartition(":")
        self._server = host, int(port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.passed: list[socket.socket] = []
        self._all: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def forget(self) -> None:
        """Carry nothing more over the connections so far."""
        self.passed.clear()

    def close(self) -> None:
        """End all."""
        for one in (self._listener, *self._all):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(self._server)
                self._all += near, far
                self.passed.append(near)
                for ends in ((near, far), (far, near)):
                    threading.Thread(target=self._carry, args=(near, *ends), daemon=True).start()

    def _carry(self, known: socket.socket, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while content := source.recv(1 << 16):
                if known in self.passed:
                    sink.sendall(content)
            if known in self.passed:
                sink.shutdown(socket.SHUT_WR)


@contextlib.contextmanager
def silent_router(server: str) -> Iterator[SilentRouter]:
    """Stand before a server."""
    router = SilentRouter(server)
    try:
        yield router
    finally:
        router.close()
