"""A file that says until when this process counts as alive.

A health check in the same container reads it.
"""

import json
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from fedappeal.settings.model import ConfigError, local_path
from fedappeal.system.files import replace_file

GRACE = 15.0
"""Seconds that a sign of life is good for beyond what its writer expects."""
_APART = 1.0
"""Seconds by which a sign of life changes the file, or it is left as it is."""


class Heartbeat:
    """Writes signs of life into a file.

    Args:
        path: the file; its folder is there.
        clock: seconds since 1970.

    Raises:
        ConfigError: the file cannot be written.
    """

    def __init__(self, path: Path, clock: Callable[[], float] = time.time) -> None:
        self._path = path
        self._clock = clock
        self._until = 0.0
        try:
            self._write(0.0)  # not alive yet
        except OSError as error:
            raise ConfigError(f"heartbeat = '{path}' is not allowed: {error.strerror}") from None

    def beat(self, seconds: float) -> None:
        """Say that this process works as it should, and will say so again within some seconds."""
        until = self._clock() + seconds + GRACE
        if abs(until - self._until) >= _APART:
            self._until = until
            with suppress(OSError):  # a full disk: what is served matters more
                self._write(until)

    def _write(self, until: float) -> None:
        replace_file(self._path, json.dumps({"until": until}).encode(), durable=False)


def no_beat(seconds: float) -> None:
    """Say nothing of this process."""


def beat_of(path: str) -> Callable[[float], None]:
    """Return what takes signs of life for a file as its user wrote it; for an empty path nothing is written.

    Raises:
        ConfigError: the file cannot be written.
    """
    return Heartbeat(local_path(path, "heartbeat").absolute()).beat if path else no_beat


def heartbeat_problem(path: Path, now: float) -> str | None:
    """Return why the process of a heartbeat does not count as alive.

    None where it does.

    Args:
        path: the file.
        now: seconds since 1970.
    """
    try:
        until = float(json.loads(path.read_bytes())["until"])
    except (OSError, ValueError, TypeError, KeyError) as error:
        return f"'{path}' cannot be read: {error}"
    if not until:
        return "it has not begun to serve"
    return None if now <= until else f"no sign of life for {now - until:.0f} s more than expected"
