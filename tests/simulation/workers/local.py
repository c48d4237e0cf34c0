"""Workers in this process: objects that get and give pickled copies, and are gone when a test says so."""

import pickle
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from fedappeal.simulation.workers.cluster import WorkerLost
from fedappeal.simulation.workers.worker import EngineWorker, WorkerJob


class LocalWorker:
    """A worker in this process; see `fedappeal.simulation.workers.workers_grid.Remote`.

    Attributes:
        calls: that were made, each its method and arguments.
        most: calls after which the worker is gone; 0: it stays.
    """

    def __init__(self, job: WorkerJob) -> None:
        self.worker = EngineWorker(pickle.loads(pickle.dumps(job)))
        self.calls: list[tuple[Any, ...]] = []
        self.most = 0

    def begin(self, method: str, *arguments: Any) -> Callable[[], Any]:
        sent = pickle.dumps(arguments)
        self.calls.append((method, *arguments))

        def wait() -> Any:
            if 0 < self.most < len(self.calls):
                raise WorkerLost("killed")
            return pickle.loads(pickle.dumps(getattr(self.worker, method)(*pickle.loads(sent))))

        return wait


class Workers:
    """The workers of a test's runs.

    Attributes:
        latest: those of the latest run.
        most: calls after which the second of them is gone; 0: it stays.
    """

    def __init__(self) -> None:
        self.latest: list[LocalWorker] = []
        self.most = 0

    @contextmanager
    def processes(self, jobs: Sequence[WorkerJob]) -> Iterator[list[LocalWorker]]:
        """In place of `fedappeal.simulation.workers.process.processes`."""
        self.latest = [LocalWorker(job) for job in jobs]
        self.latest[-1].most = self.most
        try:
            yield self.latest
        finally:
            for local in self.latest:
                local.worker.close()


@pytest.fixture
def workers(monkeypatch: pytest.MonkeyPatch) -> Workers:
    """Let simulations with workers have these."""
    made = Workers()
    monkeypatch.setattr("fedappeal.simulation.workers.workers_grid.processes", made.processes)
    return made
