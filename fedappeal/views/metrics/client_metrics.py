"""The metrics of one client, of its process and of all its runs."""

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from prometheus_client.metrics_core import Metric as MetricFamily

from client.process.serve import Event
from client.process.status import RunState, State, client_status
from fedappeal.views.metrics.catalogue import ReadMetrics, metrics_in

EVENTS: tuple[str, ...] = ("connected", "waiting", "answered", "failed", "dropped", "paused", "resumed")
EVENTS += ("run-ended", "ended", "given-up")
DONE = ("joined", "sat-out", "left", "evaluated", "failed")


class ClientMetrics(ReadMetrics):
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
        self._of = metrics_in(self, "client")
        for event in EVENTS:
            self._of["client_events"].labels(event)

    def event(self, event: Event) -> None:
        """Count an event of the client's process."""
        if event.kind in EVENTS:
            self._of["client_events"].labels(event.kind).inc()
        if event.kind in ("connected", "waiting", "ended", "given-up"):
            self._of["client_connected"].set(event.kind == "connected")
        if event.kind in ("paused", "resumed"):
            self._of["client_paused"].set(event.kind == "paused")

    def alive(self, seconds: float) -> None:
        """Record a sign of life."""
        self._of["client_last_alive_seconds"].set(self._clock())

    def collect(self) -> Iterator[MetricFamily]:
        """Read the client's status, and yield all metrics."""
        with self._alone:
            status = client_status(self._folder)
            for state in State:
                self._of["client_state"].labels(state).set(state is status.state)
            for stands in RunState:
                self._of["client_run_states"].labels(stands).set(sum(run.state is stands for run in status.runs))
            runs = [run.activity for run in status.runs if run.activity is not None]
            self._of["client_runs"].set(len(runs))
            for done in DONE:
                self._of["client_answers"].labels(done).set(sum(run.done.get(done, 0) for run in runs))
            self._of["client_work_seconds"].set(sum(run.seconds for run in runs))
            self._of["client_bytes"].labels("up").set(sum(run.bytes_up for run in runs))
            self._of["client_bytes"].labels("down").set(sum(run.bytes_down for run in runs))
            if runs and (judged := runs[-1].judged) is not None:
                self._of["client_round"].set(runs[-1].server_round)
                self._of["client_model_figure"].set(judged.figure)
                self._of["client_requirement"].set(judged.requirement)
                self._of["client_requirement_met"].set(judged.met)
            families = [*super().collect()]
        yield from families
