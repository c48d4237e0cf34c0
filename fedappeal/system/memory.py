"""How much memory there is."""

import os
from pathlib import Path

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
