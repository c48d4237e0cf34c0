"""The virtual clients of a run, in this process: their data, their participants, the grid that reaches them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property

from flwr.app import Context, RecordDict

from client.app import client_app
from client.data.cache import Cache
from client.participant import Participant
from client.roster import Participants
from fedappeal.settings.config import Scalar
from fedappeal.simulation.forms.choice import form_of
from fedappeal.simulation.forms.scheduler import BatchScheduler, ClientQueue, ThreadedScheduler
from fedappeal.simulation.grid import FIRST_NODE, RUN, InProcessGrid
from fedappeal.simulation.pool import ClientsData
from fedappeal.simulation.process_wide import frozen_objects, single_threaded_workers
from server.build import Chosen


@dataclass(frozen=True)
class Contexts:
    """Makes the contexts of a run's virtual clients.

    Attributes:
        plugins: the run's settings and plug-ins.
        data_dir: folder with the data sets.
        device: where data and models are.
    """

    plugins: Chosen
    data_dir: str
    device: str

    @property
    def clients(self) -> int:
        """The number of clients, unseen ones among them."""
        return self.plugins.config.clients + self.plugins.config.unseen_clients

    @cached_property
    def _node(self) -> dict[str, Scalar]:
        return {
            "num-partitions": self.clients,
            "data-dir": self.data_dir,
            "device": self.device,
            "allow": ",".join(self.plugins.packages()),
            "set": self.plugins.owner_files(),
        }

    @cached_property
    def _told(self) -> dict[str, Scalar]:
        return self.plugins.config.as_config()

    def of(self, k: int) -> Context:
        """Return the context of client k, without a record."""
        return Context(RUN, FIRST_NODE + k, {"partition-id": k, **self._node}, RecordDict(), self._told)


@contextmanager
def clients_here(
    contexts: Contexts, pool: ClientsData, cache: Cache, mode: str, threads: int, kind: Callable[..., Participant]
) -> Iterator[tuple[InProcessGrid, Participants]]:
    """Run with virtual clients in this process.

    Args:
        contexts: makes theirs.
        pool: their data, of the run's task.
        cache: what they share.
        mode: ``layers``, ``vmap`` or ``sequential``.
        threads: PyTorch threads.
        kind: makes a participant.

    Yields:
        The grid that reaches them, and their participants.
    """
    form = form_of(mode, pool.task, cache.scratch_model(pool.task, contexts.plugins.config.seed, pool.device))
    with single_threaded_workers(threads) as workers, frozen_objects():
        scheduler: ClientQueue | None = None
        if form:
            scheduler = BatchScheduler(pool, form, workers)
        elif workers:
            scheduler = ThreadedScheduler(workers, threads)
        participants = Participants(scheduler, pool.client, cache, kind)
        yield InProcessGrid(client_app(participants), contexts.clients, contexts.of, scheduler), participants
