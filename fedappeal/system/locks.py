"""One process at a time in a folder: a lock that the system releases however the process ends."""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from fedappeal.settings.config import ConfigError

LOCK = "lock"
"""Name of the file in the folder that the running process holds; its process id is in it."""

_MOMENT = 0.05


class InUse(RuntimeError):
    """Another process holds the folder.

    Attributes:
        process: its id, as it wrote it; ``unknown`` where it has not.
    """

    def __init__(self, folder: Path, process: str) -> None:
        super().__init__(f"'{folder}' is in use by process {process}")
        self.process = process


def _take(file: TextIO) -> None:
    """Lock a file; once more after a moment, because `is_held` locks it that long."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        time.sleep(_MOMENT)
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


@contextmanager
def only_process(folder: Path, name: str = LOCK) -> Iterator[None]:
    """Hold a folder's lock; the folder is made where it is not there.

    Raises:
        InUse: another process holds it.
        ConfigError: the folder cannot be written to, or allows no locks.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / name).open("a+")
    except OSError as error:
        raise ConfigError(f"'{folder}' is not allowed: {error.strerror}") from None
    with file:
        try:
            _take(file)
        except BlockingIOError:
            file.seek(0)
            raise InUse(folder, file.read().strip() or "unknown") from None
        except OSError as error:
            raise ConfigError(f"'{folder}' is not allowed: it cannot be locked ({error.strerror})") from None
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


def is_held(folder: Path, name: str = LOCK) -> bool | None:
    """Whether some process holds a folder's lock; None: that cannot be told, as where no process ever held it."""
    try:
        number = os.open(folder / name, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)  # a pipe would be waited for
    except OSError:
        return None
    try:
        fcntl.flock(number, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return None
    finally:
        os.close(number)
    return False
