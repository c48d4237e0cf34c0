"""The life of a client process: one at a time per state folder, and a clean end within two seconds."""

import fcntl
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import IO

LOCK = "lock"
"""Name of the file in the state folder that the running process holds; its process id is in it."""
END_WITHIN = 1.0
"""Seconds that work in hand gets after SIGTERM; going offline takes up to 0.8 more."""


class StateInUse(RuntimeError):
    """Another process uses the state folder; the message says which."""


@contextmanager
def only_process(state_dir: str) -> Iterator[None]:
    """Hold the lock of a state folder; the system releases it however the process ends."""
    if not state_dir:
        yield
        return
    folder = Path(state_dir).expanduser()
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / LOCK).open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise StateInUse(f"state-dir = '{state_dir}' is in use by {_holder(file)}") from None
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


def _holder(file: IO[str]) -> str:
    file.seek(0)
    return f"another client (process {file.read().strip() or 'unknown'}): stop it, or give another folder"


class Ending:
    """SIGTERM and SIGINT: ask the loop to end, and end the process where it does not in time."""

    def __init__(self) -> None:
        self.asked = threading.Event()
        self.last_act: Callable[[], None] = lambda: None
        self._before: dict[int, object] = {}

    def __enter__(self) -> "Ending":
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                self._before[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        self.asked.clear()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.asked.is_set():
            os._exit(0)
        self.asked.set()
        threading.Thread(target=self._force, daemon=True).start()

    def _force(self) -> None:
        """End the process in the midst of work: its durable state is made for that."""
        time.sleep(END_WITHIN)
        if self.asked.is_set():
            self.last_act()
            logging.shutdown()
            sys.stdout.flush()
            os._exit(0)
