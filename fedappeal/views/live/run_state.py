"""A run as its folder tells it while it runs: how it stands, its rounds, its clients, how long it still takes."""

from collections import Counter
from pathlib import Path
from statistics import fmean
from typing import Any

from fedappeal.protocol.foreign_text import one_line, printable
from fedappeal.protocol.metric import ACCURACY
from fedappeal.record.resumption import KIND
from fedappeal.record.run_folder import (
    EVENTS,
    HISTORY,
    PARTICIPATION,
    read_config,
    recorded_metric,
    recorded_settings,
)
from fedappeal.settings.config import ConfigError
from fedappeal.views.live.clients import Clients
from fedappeal.views.live.tail import Tail

MOST_ROUNDS = 200
"""Rounds, the latest ones, that the page lists."""
MOST_REASONS = 20
ESTIMATED_FROM = 20
"""Rounds, the latest ones, whose mean says how long the others will take."""
_SUMS = ("asked", "joined", "sat_out", "left", "failed", "bytes_up", "bytes_down", "seconds")
_SHOWN = ("round", *_SUMS, "surplus", "mandatory", "evaluated", "expected", "gm_appeal", "served")
_REASON = 160
_LARGEST = 1e300

WAITING, RUNNING, FINISHED, FAILED, INTERRUPTED = "waiting", "running", "finished", "failed", "interrupted"


def seconds_left(seconds: list[float], rounds_left: int) -> float | None:
    """Return an estimate of the time that a run still takes: the mean of its latest rounds, for each that is left."""
    latest = seconds[-ESTIMATED_FROM:]
    return fmean(latest) * max(0, rounds_left) if latest else None


class RunState:
    """What a run's folder says so far.

    Attributes:
        path: the folder.
        clients: the run's.
        state: `WAITING` for clients, `RUNNING`, `FINISHED`, `FAILED` or `INTERRUPTED`, by what the folder says.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._metric = ACCURACY
        self._events = Tail(path / EVENTS)
        self._history = Tail(path / HISTORY)
        self._decisions = Tail(path / PARTICIPATION)
        self._begin()

    def _begin(self) -> None:
        self.clients = Clients()
        self.state, self._reason = WAITING, ""
        self._rounds: list[dict[str, Any]] = []
        self._seconds: list[float] = []
        self._totals: Counter[str] = Counter()
        self._failures: Counter[str] = Counter()
        self._round, self._since, self._last = 0, 0.0, 0

    def read(self) -> tuple[list[dict[str, Any]], bool]:
        """Read what is new; return the new rounds, and whether everything was read anew."""
        events, anew = self._events.read()
        decisions, rounds = self._decisions.read(), self._history.read()
        if anew or decisions[1] or rounds[1]:
            nodes = self.clients.nodes
            self._begin()
            self.clients.nodes = nodes
            self._events, self._history, self._decisions = (
                Tail(self.path / name) for name in (EVENTS, HISTORY, PARTICIPATION)
            )
            events, decisions, rounds = self._events.read()[0], self._decisions.read(), self._history.read()
            anew = True
        for line in events:
            self._event(line)
        self.clients.decided(decisions[0])
        self._metric = recorded_metric(self.path)  # known once a round is over
        fresh = [self._line(line) for line in rounds[0] if type(line.get("round")) is int]
        self._rounds = (self._rounds + fresh)[-MOST_ROUNDS:]
        return fresh, anew

    def _event(self, line: dict[str, Any]) -> None:
        kind = line.get("event")
        self.clients.event(line)
        if kind == "round":
            self.state, self._reason = RUNNING, ""
            self._round, self._since = _whole(line.get("round")), _number(line.get("time"))
        elif kind == "resumed":
            self.state, self._reason = WAITING, ""
            self.clients.forget_after(_whole(line.get("round")))
        elif kind in (FINISHED, FAILED, INTERRUPTED):
            self.state, self._reason = str(kind), one_line(line.get("reason", ""), _REASON)

    def _line(self, line: dict[str, Any]) -> dict[str, Any]:
        """Take up a round of the history; return what the page shows of it."""
        self._last = int(line["round"])
        self._totals.update({key: _number(line.get(key)) for key in _SUMS})
        self._seconds = [*self._seconds[1 - ESTIMATED_FROM :], _number(line.get("seconds"))]
        failures = line.get("failures")
        if isinstance(failures, dict):
            self.clients.failed(self._last, failures)
            self._failures.update(one_line(reason, _REASON) for reason in failures.values())
        wanted = (*_SHOWN, self._metric.column)
        return {key: value for key in wanted if (value := line.get(key)) is not None and _is_figure(value)}

    def rounds(self) -> list[dict[str, Any]]:
        """Return the latest rounds, as the history has them."""
        return self._rounds

    def failures(self) -> list[dict[str, Any]]:
        """Return the reasons of failures, and how often each occurred."""
        return [{"reason": reason, "times": times} for reason, times in self._failures.most_common(MOST_REASONS)]

    def section(self) -> dict[str, Any]:
        """Return the run as a whole, as the page shows it."""
        settings, runtime, total = self._settings()
        running = self.state in (WAITING, RUNNING)
        left = seconds_left(self._seconds, total - self._last)
        return {
            "title": f"{printable(settings.get('strategy', ''), 80)} on {printable(settings.get('task', ''), 80)}",
            "folder": printable(self.path, 300),
            "seed": settings.get("seed") if isinstance(settings.get("seed"), int) else None,
            "runtime": printable(runtime, 20),
            "state": self.state,
            "reason": self._reason,
            "round": self._round,
            "since": self._since,
            "last": self._last,
            "total": total,
            "left": left if running else None,
            "metric": {
                "column": self._metric.column,
                "name": printable(self._metric.name, 40),
                "share": self._metric.is_share,
            },
            "sums": {key: self._totals[key] for key in _SUMS},
            "latest": self._rounds[-1] if self._rounds else None,
        }

    def _settings(self) -> tuple[dict[str, Any], str, int]:
        """Return the settings, the kind of runtime and the total of rounds; empty while they cannot be read."""
        try:
            settings, runtime = recorded_settings(self.path), read_config(self.path).get("runtime")
        except ConfigError:
            return {}, "", 0
        kind = runtime.get(KIND, "") if isinstance(runtime, dict) else ""
        return settings, str(kind), _whole(settings.get("rounds"))


def _whole(value: object) -> int:
    return value if isinstance(value, int) and 0 <= value < 2**53 else 0


def _is_figure(value: object) -> bool:
    return isinstance(value, bool) or (isinstance(value, int | float) and abs(value) < _LARGEST)


def _number(value: object) -> float | int:
    return value if isinstance(value, int | float) and _is_figure(value) else 0
