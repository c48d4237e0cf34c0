"""A run's metrics, read from its folder each time that they are asked for: a run never waits for them."""

import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, Gauge, Histogram
from prometheus_client.metrics_core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric as MetricFamily

from fedappeal.protocol.metric import ACCURACY
from fedappeal.record.columns import GAUGE, Column, templates
from fedappeal.record.decisions import decisions_of
from fedappeal.record.follower import Follower
from fedappeal.record.reader import FAILED, RUNNING, WAITING, Record, Snapshot, figure, is_figure
from fedappeal.settings.config import ConfigError
from fedappeal.system.validity import Validity
from fedappeal.views.metrics.catalogue import REASONS, ReadMetrics, metrics_in
from fedappeal.views.metrics.serving import CountConnected
from strategies.rounds.round import ABSENT, COUNTED

OTHER = "other"
KINDS = (*REASONS, OTHER)
"""Kinds of reasons for which a reply is left out or a client refused: few, whatever other parties write."""
_NOWHERE = Path(os.devnull)
_SECONDS = (0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000)


class FolderMetrics(ReadMetrics):
    """All metrics of the run in a folder; empty while there is none.

    Args:
        latest: returns the folder, asked each time: beside a SuperLink that of its latest run; None: there is none.
        connected: counts the connected clients; None: the run has no connections.
        validity: returns the dates of the SuperLink's certificate; None: it has none, or they are not known.
    """

    def __init__(
        self,
        latest: Callable[[], Path | None],
        connected: CountConnected | None = None,
        validity: Callable[[], Validity | None] = lambda: None,
    ) -> None:
        super().__init__()
        self._latest, self._folder = latest, _NOWHERE
        self._connected, self._validity = connected, validity
        self._follower = Follower(_NOWHERE)
        self._run: RunMetrics | None = None
        self._alone = threading.Lock()

    def collect(self) -> Iterator[MetricFamily]:
        """Read the folder's new lines, and yield all metrics."""
        with self._alone:
            families: list[MetricFamily] = []
            if self._connected is not None:
                count = self._connected()
                words, value = "Clients connected to the SuperLink", float("nan") if count is None else count
                families.append(GaugeMetricFamily("fedappeal_clients_connected", words, value))
            with suppress(OSError, ConfigError):  # the folder may not be there yet, or be seen no more
                self._read()
            if dates := self._validity():
                words, value = "When the SuperLink's certificate ends, since 1970", dates.end.timestamp()
                families.append(GaugeMetricFamily("fedappeal_certificate_end_seconds", words, value))
            families += self._run.registry.collect() if self._run else []
        yield from families

    def _read(self) -> None:
        if (folder := self._latest() or _NOWHERE) != self._folder or self._run is None:
            self._folder, self._follower, self._run = folder, Follower(folder, decisions=True), None
        news = self._follower.read()
        if self._run is None or news.anew:  # a run that continues dropped rounds: count anew
            self._run = None  # also where its settings cannot be read
            self._run = RunMetrics(Record(self._folder).settings)
        if news.rounds:
            self._run.metric = Record(self._folder).metric  # a run records it with its first round
        decisions = {line.get("round"): line for line in news.decisions}
        for line in news.rounds:
            self._run.round(line, decisions.get(line["round"], {}))
        for line in news.events:
            self._run.event(line)


class RunMetrics:
    """Metrics of a run; of the labels' values none comes from another party.

    Attributes:
        registry: what they are read from.
        metric: the task's primary metric.
    """

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self.registry = CollectorRegistry()
        self.metric = ACCURACY
        self._snapshot = Snapshot()
        self._of = metrics_in(self.registry, "run")
        labels = (str(settings.get(key, ""))[:200] for key in ("strategy", "task", "seed"))
        self._of["run_info"].labels(*labels).set(1)
        self._of["rounds_planned"].set(_number(settings.get("rounds")))
        self._seconds = Histogram(
            "fedappeal_round_seconds", "Wall time of rounds", buckets=_SECONDS, registry=self.registry
        )
        self._figures = {column: self._gauge(column) for column in templates(GAUGE)}
        for direction in ("up", "down"):
            self._of["bytes"].labels(direction)
        for decision in COUNTED.values():
            self._of["decisions"].labels(decision)
            self._of["round_decisions"].labels(decision)
        for kind in KINDS:
            self._of["failures"].labels(kind)
            self._of["refusals"].labels(kind)

    def round(self, line: Mapping[str, Any], decisions: Mapping[str, Any]) -> None:
        """Add a line of the history, and that of the round's decisions."""
        self._of["round"].set(_number(line.get("round")))
        self._of["rounds"].inc()
        self._seconds.observe(_number(line.get("seconds")))
        self._of["asked"].inc(_number(line.get("asked")))
        for direction in ("up", "down"):
            self._of["bytes"].labels(direction).inc(_number(line.get(f"bytes_{direction}")))
        for decision in COUNTED.values():
            count = _number(line.get(decision))
            self._of["decisions"].labels(decision).inc(count)
            self._of["round_decisions"].labels(decision).set(count)
        if isinstance(failures := line.get("failures"), dict):
            decided = decisions_of([decisions], line["round"])
            for reason in (failures[client] for client in failures if decided.get(client) != ABSENT):
                self._of["failures"].labels(kind_of(reason)).inc()
        for column, gauge in self._figures.items():
            value = line.get(column.of(self.metric).key)
            if is_figure(value):
                (gauge.labels(self.metric.name) if "{" in column.key else gauge).set(float(value))

    def _gauge(self, column: Column) -> Gauge:
        """Return a column's gauge, with a label for the primary metric.

        A run says later what that is called.
        """
        words = column.words[0].upper() + column.words[1:]
        if "{" in column.key:
            return Gauge("fedappeal_model_metric", words, ["metric"], registry=self.registry)
        return Gauge(f"fedappeal_model_{column.key}", words, registry=self.registry)

    def event(self, line: Mapping[str, Any]) -> None:
        """Add a line of the events."""
        kind = line.get("event")
        if kind == "enrolled":
            self._of["clients_enrolled"].set(_number(line.get("enrolled")))
        elif kind == "refused":
            self._of["refusals"].labels(kind_of(line.get("reason", ""))).inc()
        elif kind == "unavailable":
            self._of["unavailable"].inc()
        elif kind == "rolled-back":
            self._of["rollbacks"].inc()
        self._snapshot.event(line)
        self._of["run_running"].set(self._snapshot.state in (WAITING, RUNNING))
        self._of["run_failed"].set(self._snapshot.state == FAILED)


def kind_of(reason: object) -> str:
    """Return a reason's kind: the first that fits, or ``other``."""
    text = str(reason)
    return next((kind for kind, pattern in REASONS.items() if re.search(pattern, text)), OTHER)


def _number(value: Any) -> float:
    """Return a count as a number; 0 where a line has none."""
    return max(0.0, float(figure(value)))
