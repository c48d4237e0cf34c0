"""How much memory there is, and how much of it some processes hold."""

import contextlib
import os
from pathlib import Path

import psutil

_SURE = 0.9
"""Share of a limit below which memory that is read quickly says enough."""
CONTAINER_LIMIT = Path("/sys/fs/cgroup/memory.max")
"""A container's own limit in bytes, or ``max`` (cgroup v2); the host itself has no such file."""


def memory_bytes() -> int:
    """Return the machine's memory in bytes, or the container's lower limit."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        limit = CONTAINER_LIMIT.read_text("utf-8").strip()
    except OSError:
        return physical
    return min(physical, int(limit)) if limit.isdecimal() else physical


def holds_more(pid: int, limit: int) -> bool:
    """Return whether a process and its descendants hold more bytes than this; what they share counts once.

    What they hold together with what they share is read first, a thousand times as fast: it is no less, but for the
    pages that Linux counts later.
    """
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        family = [process, *process.children(recursive=True)]
        return sum(map(_resident, family)) > _SURE * limit and sum(map(_proportional, family)) > limit
    return False


def _resident(process: psutil.Process) -> int:
    with contextlib.suppress(psutil.NoSuchProcess):
        return int(process.memory_info().rss)
    return 0


def _proportional(process: psutil.Process) -> int:
    with contextlib.suppress(psutil.NoSuchProcess):
        try:
            return int(process.memory_full_info().pss)
        except (psutil.AccessDenied, AttributeError):  # not Linux
            return _resident(process)
    return 0
