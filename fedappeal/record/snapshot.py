"""A run as it stands: its state, how it ended, its latest round and its totals, from events and rounds in order."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, TypeGuard

from fedappeal.protocol.foreign_text import one_line

WAITING, RUNNING, FINISHED, FAILED, INTERRUPTED = "waiting", "running", "finished", "failed", "interrupted"
SUMMED = ("asked", "joined", "sat_out", "left", "failed", "bytes_up", "bytes_down", "seconds")
"""Columns of the history of which there are totals."""
LONGEST_REASON = 160
"""Characters by which reasons are told apart, and shown."""
_LARGEST = 1e300


class Snapshot:
    """A run as it stands.

    Attributes:
        state: `WAITING` for clients, `RUNNING`, `FINISHED`, `FAILED` or `INTERRUPTED`.
        reason: why it failed or ended early; empty where it did not.
        begun: the latest round that began; ``since``: when, in seconds since 1970.
        end: the event that ended the run (``round``, ``reason`` of an early end); None while it is to continue,
            however the latest process left it.
        latest: the latest round's line of the history; empty: no round is over.
        totals: of the columns `SUMMED`.
        failures: reasons for which replies were left out, and how often each occurred.
    """

    def __init__(self, events: Iterable[Mapping[str, Any]] = (), rounds: Iterable[Mapping[str, Any]] = ()) -> None:
        self.state, self.reason = WAITING, ""
        self.begun, self.since = 0, 0.0
        self.end: dict[str, Any] | None = None
        self.latest: Mapping[str, Any] = {}
        self.totals: Counter[str] = Counter(dict.fromkeys(SUMMED, 0))
        self.failures: Counter[str] = Counter()
        for event in events:
            self.event(event)
        for line in rounds:
            self.round(line)

    def event(self, line: Mapping[str, Any]) -> None:
        """Take up a line of the events."""
        kind = line.get("event")
        if kind == "round":
            self.state, self.reason = RUNNING, ""
            self.begun, self.since = int(figure(line.get("round"))), figure(line.get("time"))
        elif kind == "resumed":
            self.state, self.reason, self.end = WAITING, "", None
        elif kind in (FINISHED, FAILED, INTERRUPTED):
            self.state, self.reason = str(kind), str(line.get("reason", ""))
            if kind == FINISHED:
                self.end = {**line, "round": line.get("round", 0), "reason": self.reason}

    def round(self, line: Mapping[str, Any]) -> None:
        """Take up a line of the history."""
        self.latest = line
        self.totals.update({key: figure(line.get(key)) for key in SUMMED})
        if isinstance(failures := line.get("failures"), dict):
            self.failures.update(one_line(reason, LONGEST_REASON) for reason in failures.values())

    @property
    def last_round(self) -> int:
        """The latest round that is over; 0: none."""
        return int(self.latest.get("round", 0))

    @property
    def process_end(self) -> str:
        """How the process of a run that is over left it: `FINISHED`, `FAILED` or `INTERRUPTED`."""
        return self.state if self.state in (FINISHED, FAILED) else INTERRUPTED


def is_figure(value: object) -> TypeGuard[float]:
    """Whether a value of the history is a number of usual size."""
    return isinstance(value, bool) or (isinstance(value, int | float) and abs(value) < _LARGEST)


def figure(value: object) -> float | int:
    """Return a number of usual size; 0 for anything else."""
    return value if is_figure(value) else 0
