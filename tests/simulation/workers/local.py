"""Workers without Ray: objects in this process that get and give pickled copies, and die when a test says so."""

import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from fedappeal.record.folder import RunFolder
from fedappeal.simulation.in_process_grid import Contexts
from fedappeal.simulation.options import Simulation
from fedappeal.simulation.workers.cluster import WorkerLost
from fedappeal.simulation.workers.worker import EngineWorker, WorkerJob
from fedappeal.simulation.workers.workers_grid import Crew, Remote, WorkersGrid, sums_suffice


class LocalWorker:
    """A worker in this process; see `fedappeal.simulation.workers.workers_grid.Remote`.

    Attributes:
        calls: methods that were called, in order.
        bytes: that were given and came back, pickled, by method.
        dies: told the method and its number of calls, says whether the worker is gone before it or after it.
    """

    def __init__(self, job: WorkerJob, dies: Callable[[str, int], str]) -> None:
        self._worker: EngineWorker | None = EngineWorker(pickle.loads(pickle.dumps(job)))
        self.calls: list[str] = []
        self.bytes: dict[str, list[int]] = {}
        self.dies = dies

    def begin(self, method: str, *given: Any) -> Callable[[], Any]:
        sent = pickle.dumps(given)

        def wait() -> Any:
            self.calls.append(method)
            when = self.dies(method, self.calls.count(method))
            if when == "before":
                self.end()
            if self._worker is None:
                raise WorkerLost("killed")
            found = pickle.dumps(getattr(self._worker, method)(*pickle.loads(sent)))
            self.bytes.setdefault(method, []).append(len(sent) + len(found))
            if when == "after":
                self.end()
                raise WorkerLost("killed")
            return pickle.loads(found)

        return wait

    def end(self) -> None:
        if self._worker is not None:
            self._worker.close()
        self._worker = None


class Workers:
    """What a test says of the workers of the runs to come, and sees of them."""

    def __init__(self) -> None:
        self.dies: Callable[[int, str, int], str] = lambda worker, method, count: ""
        self.made: list[LocalWorker] = []
        self.keeps: bool | None = None

    @contextmanager
    def clients(self, contexts: Contexts, simulation: Simulation, folder: RunFolder) -> Iterator[WorkersGrid]:
        plugins = contexts.plugins
        keeps = sums_suffice(plugins) if self.keeps is None else self.keeps
        job = WorkerJob(contexts, simulation.mode, 1, keeps)

        def dies(k: int) -> Callable[[str, int], str]:
            return lambda method, count: self.dies(k, method, count)

        self.made = [LocalWorker(job, dies(k)) for k in range(simulation.workers)]
        remote: dict[int, Remote] = dict(enumerate(self.made))

        def told(worker: int, clients: int, reason: str) -> None:
            folder.event("worker-lost", worker=worker)

        crew = Crew(remote, contexts.clients, told)
        try:
            crew.start()
            yield WorkersGrid(crew, contexts.of)
        finally:
            crew.end()


@pytest.fixture
def workers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Workers:
    """Let simulations with workers have these."""
    made = Workers()
    monkeypatch.setattr("fedappeal.simulation.engine.clients_on_workers", made.clients)
    return made
