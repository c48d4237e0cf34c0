"""What a run adds to its folder, read while it runs."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedappeal.record.lines import decisions_of
from fedappeal.record.run_folder import EVENTS, HISTORY, read_lines

Watch = Callable[[str, dict[str, Any]], None]
"""Told of each new line of the run's folder: ``("round" | "event", line)``."""


class Follower:
    """Reads what a run adds to its folder.

    A run that continues first drops the lines of rounds that it runs again: nothing is read before it says that it
    has done so.

    Attributes:
        finished: whether the run has said that it finished.
        failed: why it failed, empty otherwise.
    """

    def __init__(self, path: Path, watch: Watch) -> None:
        self.finished = False
        self.failed = ""
        self._path = path
        self._watch = watch
        self._old = len(_lasting(read_lines(path / EVENTS)))
        self._read: int | None = None if self._old else 0
        self._round = 0

    def read(self) -> None:
        """Report all lines that are new."""
        events = read_lines(self._path / EVENTS)
        if self._read is None:
            if len(lasting := _lasting(events)) <= self._old:
                return
            self._read = lasting[self._old]
        fresh = events[self._read :]
        self._read += len(fresh)
        for line in fresh:
            if line["event"] == "resumed":
                self._round = int(line["round"])
            self._watch("event", line)
        for line in read_lines(self._path / HISTORY):
            if int(line["round"]) <= self._round:
                continue
            self._round = int(line["round"])
            self._watch("round", {**line, "decisions": decisions_of(self._path, self._round)})
        for line in fresh:
            self.finished = self.finished or line["event"] == "finished"
            self.failed = str(line["reason"]) if line["event"] == "failed" else self.failed


def _lasting(events: list[dict[str, Any]]) -> list[int]:
    """Return the numbers of the lines that no continuation drops: all but round beginnings."""
    return [number for number, line in enumerate(events) if line["event"] != "round"]
