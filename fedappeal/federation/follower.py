"""What a run adds to its folder, read while it runs."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedappeal.files import read_safetensors
from server.run_folder import CHECKPOINT, EVENTS, HISTORY, PARTICIPATION, read_lines

Watch = Callable[[str, dict[str, Any]], None]
"""Told of each new line of the run's folder: ``("round" | "event", line)``."""


class Follower:
    """Reads what a run adds to its folder.

    Attributes:
        finished: whether the run has said that it finished.
        failed: why it failed, empty otherwise.
    """

    def __init__(self, path: Path, watch: Watch) -> None:
        self.finished = False
        self.failed = ""
        self._path = path
        self._watch = watch
        self._events = len(read_lines(path / EVENTS))
        # Later rounds than the checkpoint's are run again, and shown again.
        checkpoint = path / CHECKPOINT
        self._round = int(read_safetensors(checkpoint)[1]["round"]) if checkpoint.exists() else 0

    def read(self) -> None:
        """Report all lines that are new."""
        fresh = read_lines(self._path / EVENTS)[self._events :]
        self._events += len(fresh)
        for line in fresh:
            self._watch("event", line)
        for line in read_lines(self._path / HISTORY):
            if int(line["round"]) <= self._round:
                continue
            self._round = int(line["round"])
            decisions = {
                d["client-id"]: d["decision"]
                for d in read_lines(self._path / PARTICIPATION)
                if d["round"] == self._round
            }
            self._watch("round", {**line, "decisions": decisions})
        for line in fresh:
            self.finished = self.finished or line["event"] == "finished"
            self.failed = str(line["reason"]) if line["event"] == "failed" else self.failed
