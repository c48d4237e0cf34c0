"""Jobs for processes of their own, which import nothing but this."""

import os
import signal
import time
from pathlib import Path

from fedappeal.settings.config import ConfigError


def write(path: Path, fail: str = "") -> None:
    path.write_text(str(os.getpid()))
    if fail == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if fail == "config":
        raise ConfigError("rounds = 0 is not allowed")
    if fail:
        raise RuntimeError(fail)


def linger(path: Path) -> None:
    write(path)
    time.sleep(120)
