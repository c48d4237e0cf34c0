"""The workers of a run, and which of them has which clients."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

log = logging.getLogger("fedappeal")

T = TypeVar("T")


class WorkerLost(Exception):
    """A worker does not answer any more; the message says why."""


class Remote(Protocol):
    """A worker somewhere else."""

    def begin(self, method: str, *given: Any) -> Callable[[], Any]:
        """Begin a call; what is returned waits for its result.

        Raises:
            WorkerLost: it does not answer any more; raised by what is returned.
        """

    def end(self) -> None:
        """End it, if it is still there."""


@dataclass
class Crew:
    """Workers by number, and their clients.

    Attributes:
        workers: those that live.
        clients: number of clients.
        on_loss: told of each worker that is lost, of its clients, and why.
        of_client: the worker of each client.
    """

    workers: dict[int, Remote]
    clients: int
    on_loss: Callable[[int, int, str], None]
    of_client: dict[int, int] = field(default_factory=dict)

    def start(self) -> None:
        """Share the clients out, one after another, and have all workers load their data.

        Raises:
            RuntimeError: all workers are lost.
        """
        self._place(range(self.clients))

    def ask(self, method: str, arguments: Mapping[int, Sequence[Any]]) -> dict[int, Any]:
        """Call workers side by side; return their results, without those of workers that are lost.

        A lost worker's clients are with the others by then.

        Args:
            method: of the worker.
            arguments: by worker.

        Raises:
            RuntimeError: all workers are lost.
        """
        results, lost = self._results(method, arguments)
        self._lose(lost)
        return results

    def _results(self, method: str, arguments: Mapping[int, Sequence[Any]]) -> tuple[dict[int, Any], dict[int, str]]:
        waits = {number: self.workers[number].begin(method, *values) for number, values in arguments.items()}
        results: dict[int, Any] = {}
        lost: dict[int, str] = {}
        for number, wait in waits.items():
            try:
                results[number] = wait()
            except WorkerLost as error:
                lost[number] = str(error)
        return results, lost

    def _place(self, clients: Sequence[int]) -> None:
        """Share clients out over the workers that live."""
        numbers = sorted(self.workers)
        placed = {number: list(clients[i :: len(numbers)]) for i, number in enumerate(numbers)}
        for number, share in placed.items():
            self.of_client |= dict.fromkeys(share, number)
        _, lost = self._results("place", {number: [share] for number, share in placed.items() if share})
        self._lose(lost)

    def _lose(self, lost: Mapping[int, str]) -> None:
        """Place the clients of lost workers anew; ``lost``: why, by worker."""
        if not lost:
            return
        clients = [k for k, number in self.of_client.items() if number in lost]
        for number, reason in lost.items():
            self.workers.pop(number).end()
            count = sum(worker == number for worker in self.of_client.values())
            log.warning("worker %d is lost (%s): its %d clients go to the others", number, reason, count)
            self.on_loss(number, count, reason)
        if not self.workers:
            reason = next(iter(lost.values()))
            raise RuntimeError(f"all workers are lost ({reason}); finished rounds are kept: fedappeal resume FOLDER")
        self._place(clients)

    def end(self) -> None:
        """End all workers."""
        while self.workers:
            self.workers.popitem()[1].end()
