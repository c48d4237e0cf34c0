"""Workers that are processes of this machine, each at the other end of a pipe."""

import multiprocessing
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from typing import Any

from fedappeal.core.places import reason
from fedappeal.settings.config import ConfigError
from fedappeal.simulation.jobs import LOST, end_with_parent
from fedappeal.simulation.workers.cluster import WorkerLost
from fedappeal.simulation.workers.worker import EngineWorker, WorkerJob
from fedappeal.system.plain_files import OF_THE_DISK

_SPAWN = multiprocessing.get_context("spawn")
_PARENTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that a whole process group gets: the run ends its workers itself, once its round is over."""


class ProcessWorker:
    """A worker in a spawned process, which does one call after another."""

    def __init__(self, job: WorkerJob) -> None:
        self._pipe, other_end = _SPAWN.Pipe()
        self._process = _SPAWN.Process(target=_serve, args=(other_end, job))
        resource_tracker.ensure_running()  # where it starts within `start`, it unblocks SIGINT for the first worker
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _PARENTS)  # a new process begins with its parent's
        try:
            self._process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        other_end.close()

    def begin(self, method: str, *arguments: Any) -> Callable[[], Any]:
        """Begin a call."""
        try:
            self._pipe.send((method, arguments))
        except OSError:
            raise WorkerLost(LOST) from None

        def wait() -> Any:
            try:
                result, error = self._pipe.recv()
            except (EOFError, OSError):
                raise WorkerLost(LOST) from None
            if error:
                raise error
            return result

        return wait

    def end(self) -> None:
        """End the process, if it is still there."""
        self._process.kill()
        self._process.join()
        self._pipe.close()


def _serve(pipe: Connection, job: WorkerJob) -> None:
    """Do the calls that come, until the process is killed."""
    end_with_parent()
    worker = EngineWorker(job)
    with suppress(EOFError, OSError):  # the other end is closed
        while True:
            method, arguments = pipe.recv()
            answer: tuple[Any, Exception | None]
            try:
                answer = getattr(worker, method)(*arguments), None
            except Exception as error:
                of_disk = isinstance(error, OSError) and error.errno in OF_THE_DISK  # the run can be continued
                answer = None, error if of_disk else ConfigError(reason(error))
            pipe.send(answer)


@contextmanager
def processes(jobs: Sequence[WorkerJob]) -> Iterator[list[ProcessWorker]]:
    """Yield a worker for each job, during the block."""
    workers: list[ProcessWorker] = []
    try:
        for job in jobs:
            workers.append(ProcessWorker(job))
        yield workers
    finally:
        for worker in workers:
            worker.end()
