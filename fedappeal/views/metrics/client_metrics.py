"""The metrics of one client: what happened in its process, and what it did in all runs that it remembers."""

import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter, Gauge
from prometheus_client.metrics_core import Metric as MetricFamily

from client.process.serve import Event
from client.process.status import RunState, State, client_status

EVENTS: tuple[str, ...] = ("connected", "waiting", "answered", "failed", "dropped", "paused", "resumed")
EVENTS += ("run-ended", "ended", "given-up")
DONE = ("joined", "sat-out", "left", "evaluated", "failed")


class ClientMetrics(CollectorRegistry):
    """Metrics of a client; of the labels' values none comes from another party.

    Args:
        state: its state folder.
        clock: seconds since 1970.
    """

    def __init__(self, state: Path, clock: Callable[[], float] = time.time) -> None:
        super().__init__()
        self._folder = state
        self._clock = clock
        self._alone = threading.Lock()
        gauge = partial(Gauge, registry=self)
        self._events = Counter("fedappeal_client_events", "What happened, by kind", ["event"], registry=self)
        self._connected = gauge("fedappeal_client_connected", "1 while the SuperLink answers")
        self._paused = gauge("fedappeal_client_paused", "1 while its owner has it rest")
        alive = "When it last polled or began to work, since 1970"
        self._polled = gauge("fedappeal_client_last_alive_seconds", alive)
        self._runs = gauge("fedappeal_client_runs", "Runs that it remembers")
        self._state = gauge("fedappeal_client_state", "1 for the state that it is in", ["state"])
        self._run_states = gauge("fedappeal_client_run_states", "Runs by how it stands in them", ["state"])
        self._done = gauge("fedappeal_client_answers", "Answers in these runs, by what was done", ["done"])
        self._seconds = gauge("fedappeal_client_work_seconds", "Time that these answers took")
        self._bytes = gauge("fedappeal_client_bytes", "Bytes of contents in these runs", ["direction"])
        self._round = gauge("fedappeal_client_round", "The latest round in which it judged a model")
        self._figure = gauge("fedappeal_client_model_figure", "What it measured of that model")
        self._requirement = gauge("fedappeal_client_requirement", "What it requires of a model")
        self._met = gauge("fedappeal_client_requirement_met", "1 where that model meets it")
        for event in EVENTS:
            self._events.labels(event)

    def event(self, event: Event) -> None:
        """Count an event of the client's process."""
        if event.kind in EVENTS:
            self._events.labels(event.kind).inc()
        if event.kind in ("connected", "waiting", "ended", "given-up"):
            self._connected.set(event.kind == "connected")
        if event.kind in ("paused", "resumed"):
            self._paused.set(event.kind == "paused")

    def alive(self, seconds: float) -> None:
        """Record a sign of life."""
        self._polled.set(self._clock())

    def collect(self) -> Iterator[MetricFamily]:
        """Read the client's status, and yield all metrics."""
        with self._alone:
            status = client_status(self._folder)
            for state in State:
                self._state.labels(state).set(state is status.state)
            for stands in RunState:
                self._run_states.labels(stands).set(sum(run.state is stands for run in status.runs))
            runs = [run.activity for run in status.runs if run.activity is not None]
            self._runs.set(len(runs))
            for done in DONE:
                self._done.labels(done).set(sum(run.done.get(done, 0) for run in runs))
            self._seconds.set(sum(run.seconds for run in runs))
            self._bytes.labels("up").set(sum(run.bytes_up for run in runs))
            self._bytes.labels("down").set(sum(run.bytes_down for run in runs))
            if runs and (judged := runs[-1].judged) is not None:
                self._round.set(runs[-1].server_round)
                self._figure.set(judged.figure)
                self._requirement.set(judged.requirement)
                self._met.set(judged.met)
            families = [*super().collect()]
        yield from families
