"""One process at a time in a folder: a lock that the system releases however the process ends."""

import fcntl
import os
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TextIO

import psutil

from fedappeal.settings.config import ConfigError
from fedappeal.system.plain_files import NotPlain, open_lock, open_plain

LOCK = "lock"
"""Name of the file in the folder that the running process holds; its process id is in it."""

CHANGES = "changes.lock"
"""Name of the file in the folder by which processes change its other files one after the other."""

_MOMENT = 0.05
_PATIENCE = 1.0
"""Seconds in which a process that holds a lock has written its id."""
_held = threading.local()


class InUse(RuntimeError):
    """Another process holds the folder.

    Attributes:
        process: its id, as it wrote it; ``unknown`` where it has not.
    """

    def __init__(self, folder: Path, process: str) -> None:
        super().__init__(f"'{folder}' is in use by process {process}")
        self.process = process


def _take(file: TextIO, folder: Path, patience: float) -> None:
    """Lock a file; InUse if another process holds it for longer than `patience` seconds.

    `is_held` holds it for a moment, and who has just taken it has not written its id yet: there may be that of a
    process which was killed.
    """
    began, is_again = time.monotonic(), False
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            file.seek(0)
            process = file.read().strip()
        waited = time.monotonic() - began
        if waited >= patience and ((is_again and _runs(process)) or waited >= _PATIENCE):
            raise InUse(folder, process or "unknown")
        is_again = True
        time.sleep(_MOMENT)


def _runs(process: str) -> bool:
    """Whether a text is the id of a process that runs."""
    with suppress(ValueError, OverflowError):
        return bool(psutil.pid_exists(int(process)))
    return False


@contextmanager
def only_process(folder: Path, name: str = LOCK, patience: float = 0.0) -> Iterator[None]:
    """Hold a folder's lock during the block; make the folder if missing.

    Args:
        folder: the folder.
        name: of the file.
        patience: seconds to wait for another process.

    Raises:
        InUse: another process holds it.
        ConfigError: the folder cannot be written to, or allows no locks.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = open(folder / name, "a+", encoding="utf-8", opener=open_lock)  # noqa: SIM115
    except NotPlain as error:
        raise ConfigError(f"file '{folder / name}' is not allowed: {error.strerror}") from None
    except OSError as error:
        raise ConfigError(f"'{folder}' is not allowed: {error.strerror}") from None
    with file:
        try:
            _take(file, folder, patience)
        except OSError as error:
            raise ConfigError(f"'{folder}' is not allowed: it cannot be locked ({error.strerror})") from None
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        try:
            yield
        finally:
            with suppress(OSError):
                file.truncate(0)  # the next process is not taken for this one


def is_held(folder: Path, name: str = LOCK) -> bool | None:
    """Whether some process holds a folder's lock; None if that cannot be told.

    It cannot where no process ever held it.
    """
    try:
        number = open_plain(folder / name)
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


@contextmanager
def changing(folder: Path) -> Iterator[None]:
    """Hold a folder for a moment, in which files of it are read and replaced; other threads and processes wait.

    A thread may hold it again inside. Who only reads needs no lock: files are replaced all at once. Where the file
    system has no locks, or the folder takes no file, nobody waits.

    Order of locks: `only_process` goes before this one, and inside the block no other lock is waited for. It is never
    held while a client trains, measures or talks to a server.
    """
    held: set[tuple[int, int]] = _held.__dict__.setdefault("files", set())
    with ExitStack() as at_end:
        with suppress(OSError):
            number = open_lock(folder / CHANGES)
            at_end.callback(os.close, number)
            state = os.fstat(number)
            if (file := (state.st_dev, state.st_ino)) not in held:
                fcntl.flock(number, fcntl.LOCK_EX)
                at_end.callback(fcntl.flock, number, fcntl.LOCK_UN)  # a process forked meanwhile has it open
                held.add(file)
                at_end.callback(held.discard, file)
        yield
