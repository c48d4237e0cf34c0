"""What every benchmark records about where it ran."""

import os
import platform
import time
from pathlib import Path
from typing import Any

from fedappeal.system.versions import recorded_versions


def described() -> dict[str, Any]:
    """Return the date, the machine and the versions."""
    return {
        "date": time.strftime("%Y-%m-%d"),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, {_processor()}",
        "versions": recorded_versions(),
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or "unknown processor"
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")
