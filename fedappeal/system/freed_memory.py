"""Memory that goes back to the system when it is freed: of the SuperLink and the ServerApp.

Not of clients, whose training would map and clear each larger tensor anew.
"""

import ctypes
import sys
from contextlib import suppress

_MMAP_THRESHOLD = -3
"""glibc's number of the setting (``malloc.h``)."""
LARGE = 1 << 20
"""Bytes from which a block is mapped alone; smaller than a chunk of a model (5 MiB)."""


def return_freed_memory() -> None:
    """Let each large block go back to the system when it is freed; without effect but on Linux with glibc.

    By itself glibc maps fewer and fewer blocks alone (a freed one raises the limit, up to 32 MiB) and keeps those of
    each thread's heap: of a model that came in chunks, over several threads, as much again.
    """
    if sys.platform == "linux":
        with suppress(AttributeError, OSError):  # another C library
            ctypes.CDLL(None).mallopt(_MMAP_THRESHOLD, LARGE)
