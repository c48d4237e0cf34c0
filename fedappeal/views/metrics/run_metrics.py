"""The metrics of one run, from the lines of its history and of its events."""

import math
from collections.abc import Mapping
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from fedappeal.protocol.metric import ACCURACY, Metric
from fedappeal.record.columns import GAUGE, Column, templates
from fedappeal.record.snapshot import FAILED, RUNNING, WAITING, Snapshot
from fedappeal.views.metrics.reasons import KINDS, kind_of

DECISIONS = ("joined", "sat_out", "left", "failed", "surplus")
_SECONDS = (0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000)


class RunMetrics:
    """Metrics of a run; of the labels' values none comes from another party.

    Attributes:
        registry: what they are read from.
        metric: the task's primary metric.
    """

    def __init__(self, settings: Mapping[str, Any], metric: Metric = ACCURACY) -> None:
        self.registry = registry = CollectorRegistry()
        self.metric = metric
        self._snapshot = Snapshot()
        named = {key: str(settings.get(key, ""))[:200] for key in ("strategy", "task", "seed")}
        info = Gauge("fedappeal_run_info", "1; which run this is", list(named), registry=registry)
        info.labels(**named).set(1)
        planned = Gauge("fedappeal_rounds_planned", "Rounds that the run is to have", registry=registry)
        planned.set(int(settings.get("rounds", 0)))
        self._round = Gauge("fedappeal_round", "The latest finished round", registry=registry)
        self._rounds = Counter("fedappeal_rounds", "Finished rounds", registry=registry)
        self._seconds = Histogram(
            "fedappeal_round_seconds", "Wall time of rounds", buckets=_SECONDS, registry=registry
        )
        self._bytes = Counter("fedappeal_bytes", "Bytes of messages' contents", ["direction"], registry=registry)
        self._asked = Counter("fedappeal_asked", "Requests to train", registry=registry)
        self._decisions = Counter(
            "fedappeal_decisions", "What became of requests to train", ["decision"], registry=registry
        )
        self._latest = Gauge(
            "fedappeal_round_decisions", "The same, of the latest round", ["decision"], registry=registry
        )
        self._failures = Counter("fedappeal_failures", "Replies left out, by kind", ["reason"], registry=registry)
        self._refused = Counter("fedappeal_refusals", "Clients refused, by kind", ["reason"], registry=registry)
        self._unavailable = Counter("fedappeal_unavailable", "Nodes that were called in vain", registry=registry)
        self._enrolled = Gauge("fedappeal_clients_enrolled", "Clients that answered the roll call", registry=registry)
        self._figures = {column: self._gauge(column) for column in templates(GAUGE)}
        self._rollbacks = Counter("fedappeal_rollbacks", "Useless models that were taken back", registry=registry)
        self._running = Gauge("fedappeal_run_running", "1 from the first event to the run's end", registry=registry)
        self._failed = Gauge("fedappeal_run_failed", "1 where the run has failed", registry=registry)
        for direction in ("up", "down"):
            self._bytes.labels(direction)
        for decision in DECISIONS:
            self._decisions.labels(decision)
            self._latest.labels(decision)
        for kind in KINDS:
            self._failures.labels(kind)
            self._refused.labels(kind)

    def round(self, line: Mapping[str, Any]) -> None:
        """Take in a line of the history."""
        self._round.set(_number(line.get("round")))
        self._rounds.inc()
        self._seconds.observe(_number(line.get("seconds")))
        self._asked.inc(_number(line.get("asked")))
        for direction in ("up", "down"):
            self._bytes.labels(direction).inc(_number(line.get(f"bytes_{direction}")))
        for decision in DECISIONS:
            count = _number(line.get(decision))
            self._decisions.labels(decision).inc(count)
            self._latest.labels(decision).set(count)
        failures = line.get("failures")
        for reason in failures.values() if isinstance(failures, dict) else ():
            self._failures.labels(kind_of(reason)).inc()
        for column, gauge in self._figures.items():
            value = line.get(column.of(self.metric).key)
            if value is not None:
                (gauge.labels(self.metric.name) if "{" in column.key else gauge).set(float(value))

    def _gauge(self, column: Column) -> Gauge:
        """Return the gauge of a column; that of the primary metric, whose name a run says later, has a label."""
        words = column.words[0].upper() + column.words[1:]
        if "{" in column.key:
            return Gauge("fedappeal_model_metric", words, ["metric"], registry=self.registry)
        return Gauge(f"fedappeal_model_{column.key}", words, registry=self.registry)

    def event(self, line: Mapping[str, Any]) -> None:
        """Take in a line of the events."""
        kind = line.get("event")
        if kind == "enrolled":
            self._enrolled.set(_number(line.get("enrolled")))
        elif kind == "refused":
            self._refused.labels(kind_of(line.get("reason", ""))).inc()
        elif kind == "unavailable":
            self._unavailable.inc()
        elif kind == "rolled-back":
            self._rollbacks.inc()
        self._snapshot.event(line)
        self._running.set(self._snapshot.state in (WAITING, RUNNING))
        self._failed.set(self._snapshot.state == FAILED)


def _number(value: Any) -> float:
    """Return a count as it may be added; 0 where a line has none."""
    return float(value) if isinstance(value, int | float) and math.isfinite(value) and value >= 0 else 0.0
