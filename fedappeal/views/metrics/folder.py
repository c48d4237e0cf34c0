"""A run's metrics, read from its folder each time that they are asked for: a run never waits for them."""

import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from prometheus_client import CollectorRegistry, Gauge
from prometheus_client.metrics_core import Metric as MetricFamily

from fedappeal.record.follower import Follower
from fedappeal.record.reader import Record
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
        self._follower = Follower(folder)
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
        news = self._follower.read()
        if self._run is None or news.anew:  # a run that continues dropped rounds: count anew
            self._run = RunMetrics(Record(self._folder).settings)
        if news.rounds:
            self._run.metric = Record(self._folder).metric  # a run records it with its first round
        for line in news.rounds:
            self._run.round(line)
        for line in news.events:
            self._run.event(line)
