"""A run as its folder tells it while it runs: how it stands, its rounds, its clients, how long it still takes."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from fedappeal.protocol.foreign_text import one_line, printable
from fedappeal.protocol.metric import ACCURACY
from fedappeal.record.columns import CHART, MEAN, PAGE, Column, shown_in
from fedappeal.record.folder import KIND, RunFolder
from fedappeal.record.follower import Follower
from fedappeal.record.reader import (
    INTERRUPTED,
    LONGEST_REASON,
    RUNNING,
    SUMMED,
    WAITING,
    Record,
    Snapshot,
    figure,
    is_figure,
)
from fedappeal.settings.config import ConfigError
from fedappeal.views.live.clients import RunClients
from strategies.rounds.exchange.replies import plain_reason

MOST_ROUNDS = 200
"""Rounds, the latest ones, that the page lists."""
MOST_REASONS = 20
ESTIMATED_FROM = 20
"""Rounds, the latest ones, whose mean says how long the others will take."""
_SHOWN = ("round", *SUMMED, "surplus", "mandatory", "evaluated", "expected")


def seconds_left(seconds: Sequence[float], rounds_left: int) -> float | None:
    """Return the estimated seconds left: latest rounds' mean times the rounds left."""
    latest = seconds[-ESTIMATED_FROM:]
    return fmean(latest) * max(0, rounds_left) if latest else None


class LiveRun:
    """The state of a run, followed through its folder.

    Attributes:
        path: the folder.
        clients: the run's.
        rounds: the latest, as the history has them.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._metric = ACCURACY
        self._follower = Follower(path, decisions=True)
        self._abandoned = False
        self._begin()

    def _begin(self) -> None:
        self.clients = RunClients()
        self._snapshot = Snapshot()
        self._awaited: dict[str, Any] = {}
        self.rounds: list[dict[str, Any]] = []
        self._seconds: list[float] = []

    @property
    def state(self) -> str:
        """The run's state, as in `Snapshot`, interrupted if its process died."""
        state = self._snapshot.state
        return INTERRUPTED if state == RUNNING and self._abandoned else state

    def read(self) -> bool:
        """Read the new lines; return whether all was read anew."""
        # Asked before the events are read: a process that ended by then has written its last word.
        self._abandoned = RunFolder.is_held(self.path) is False
        news = self._follower.read()
        if news.anew:
            nodes = self.clients.nodes
            self._begin()
            self.clients.nodes = nodes
        for line in news.events:
            self._snapshot.event(line)
            if line.get("event") in ("enrolled", "waiting"):
                self._awaited = {**self._awaited, "silent": (), **line}
            self.clients.event(line)
        self.clients.decided(news.decisions)
        self._metric = Record(self.path).metric  # known once a round is over
        self.rounds = [*self.rounds, *map(self._line, news.rounds)][-MOST_ROUNDS:]
        return news.anew

    def _line(self, line: dict[str, Any]) -> dict[str, Any]:
        """Record a round of the history; return the page's entry of it."""
        self._snapshot.round(line)
        self._seconds = [*self._seconds[1 - ESTIMATED_FROM :], figure(line.get("seconds"))]
        if line.get("mandatory"):
            self.clients.mandatory.add(int(line["round"]))
        failures = line.get("failures")
        if isinstance(failures, dict):
            self.clients.failed(int(line["round"]), failures)
        columns = (column.key for view in (PAGE, CHART) for column in shown_in(view, self._metric))
        wanted = dict.fromkeys((*_SHOWN, *columns))
        return {key: value for key in wanted if (value := line.get(key)) is not None and is_figure(value)}

    def failures(self) -> list[dict[str, Any]]:
        """Return the reasons of failures, and how often each occurred."""
        failures: Counter[str] = Counter()
        for reason, times in self._snapshot.failures.items():
            failures[plain_reason(reason)] += times
        return [{"reason": reason, "times": times} for reason, times in failures.most_common(MOST_REASONS)]

    def section(self) -> dict[str, Any]:
        """Return the run as a whole, as the page shows it."""
        settings, runtime, total = self._settings()
        running = self.state in (WAITING, RUNNING)
        left = seconds_left(self._seconds, total - self._snapshot.last_round)
        return {
            "title": f"{printable(settings.get('strategy', ''), 80)} on {printable(settings.get('task', ''), 80)}",
            "folder": printable(self.path, 300),
            "seed": settings.get("seed") if isinstance(settings.get("seed"), int) else None,
            "runtime": printable(runtime, 20),
            "state": self.state,
            "reason": one_line(self._snapshot.reason, LONGEST_REASON),
            "awaited": self._awaits(figure(settings.get("clients"))) if self.state == WAITING else "",
            "round": self._snapshot.begun,
            "since": self._snapshot.since,
            "restarted": self._snapshot.restarted,
            "last": self._snapshot.last_round,
            "total": total,
            "left": left if running else None,
            "metric": {
                "column": self._metric.column,
                "name": printable(self._metric.name, 40),
                "share": self._metric.is_share,
            },
            "columns": [_column_facts(column) for column in shown_in(PAGE, self._metric)],
            "sums": dict(self._snapshot.totals),
            "latest": self.rounds[-1] if self.rounds else None,
        }

    def _awaits(self, clients: float) -> str:
        """Return the reason why a run waits before its round."""
        if not self._awaited:
            return "its processes are starting"
        wanted = figure(self._awaited.get("wanted")) or clients
        silent = self._awaited.get("silent")
        more = f"; {len(silent)} called that have not answered yet" if isinstance(silent, list) and silent else ""
        return f"{figure(self._awaited.get('enrolled')):.0f} of {wanted:.0f} have answered{more}"

    def _settings(self) -> tuple[dict[str, Any], str, int]:
        """Return settings, kind of runtime and total of rounds; empty while unreadable."""
        try:
            record = Record(self.path)
            settings, runtime = record.settings, record.config.get("runtime")
        except ConfigError:
            return {}, "", 0
        kind = runtime.get(KIND, "") if isinstance(runtime, dict) else ""
        return settings, str(kind), int(figure(settings.get("rounds")))


def _column_facts(column: Column) -> dict[str, Any]:
    """Return a column's description for the page."""
    figure_of_model = column.averaged == MEAN
    return {"key": column.key, "title": printable(column.title, 40), "unit": column.unit, "figure": figure_of_model}
