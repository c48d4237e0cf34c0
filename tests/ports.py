"""Ports for processes that are told theirs before they bind it."""

import random
import socket
from pathlib import Path

_DRAWS = random.SystemRandom()  # a test's seed does not repeat another test's port


def free_port() -> int:
    """Return a port of loopback that is free, below those that the system gives to connections.

    A port that the system picks may be given to any connection once it is closed again; on a busy machine it was.
    """
    first_given = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while True:
        port = _DRAWS.randrange(min(10_000, first_given - 5_000), first_given)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
