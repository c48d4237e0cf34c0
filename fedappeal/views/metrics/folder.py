"""A run's metrics, read from its folder each time that they are asked for: a run never waits for them."""

import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from prometheus_client import CollectorRegistry, Gauge
from prometheus_client.metrics_core import Metric as MetricFamily

from fedappeal.federation.tail import Tail
from fedappeal.record.run_folder import EVENTS, HISTORY, recorded_metric, recorded_settings
from fedappeal.settings.config import ConfigError
from fedappeal.views.metrics.run_metrics import RunMetrics
from fedappeal.views.metrics.serving import CountConnected


class FolderMetrics(CollectorRegistry):
    """All metrics of the run in a folder; nothing, while there is none.

    Args:
        folder: the run's.
        connected: counts the connected clients; None: the run has no connections.
    """

    def __init__(self, folder: Path, connected: CountConnected | None = None) -> None:
        super().__init__()
        self._folder = folder
        self._connected = connected
        self._clients: Gauge | None = None
        if connected is not None:
            self._clients = Gauge("fedappeal_clients_connected", "Clients connected to the SuperLink", registry=self)
        self._history, self._events = Tail(folder / HISTORY), Tail(folder / EVENTS)
        self._run: RunMetrics | None = None
        self._alone = threading.Lock()

    def collect(self) -> Iterator[MetricFamily]:
        """Read what is new in the folder, and yield all metrics."""
        with self._alone:
            if self._clients is not None and self._connected is not None:
                count = self._connected()
                self._clients.set(float("nan") if count is None else count)
            with suppress(OSError, ConfigError):  # the folder may not be there yet, or be seen no more
                self._read()
            families: list[MetricFamily] = [*super().collect()]
            families += self._run.registry.collect() if self._run else []
        yield from families

    def _read(self) -> None:
        if self._run is None:
            self._run = self._fresh()
        history, events = [*self._history.read()], [*self._events.read()]
        if self._history.replaced or self._events.replaced:  # a run that continues dropped rounds: count anew
            self._history, self._events = Tail(self._folder / HISTORY), Tail(self._folder / EVENTS)
            self._run = self._fresh()
            history, events = [*self._history.read()], [*self._events.read()]
        if history:
            self._run.metric = recorded_metric(self._folder)  # a run records it with its first round
        for line in history:
            self._run.round(line)
        for line in events:
            self._run.event(line)

    def _fresh(self) -> RunMetrics:
        return RunMetrics(recorded_settings(self._folder))
