"""The end of a client process: clean, and within two seconds of a signal."""

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

END_WITHIN = 1.0
"""Seconds that work in hand gets after SIGTERM; going offline takes up to 0.8 more."""


class GracefulShutdown:
    """On SIGTERM or SIGINT asks the loop to end; ends the process otherwise."""

    def __init__(self) -> None:
        self.asked = threading.Event()
        self.last_act: Callable[[], None] = lambda: None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "GracefulShutdown":
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                self._before[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
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
