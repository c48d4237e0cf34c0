"""A run's clients on workers: which worker has which clients, and the Flower `Grid` that reaches them."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from operator import is_
from typing import Any, Protocol

from flwr.app import ArrayRecord, Context, Message, MessageType

from fedappeal.flower.messages import copy_for_node
from fedappeal.record.folder import RunFolder
from fedappeal.simulation.in_process_grid import FIRST_NODE, Contexts, VirtualClients
from fedappeal.simulation.jobs import threads_of_each
from fedappeal.simulation.options import Simulation
from fedappeal.simulation.process_wide import frozen_objects
from fedappeal.simulation.workers.cluster import (
    RayOptions,
    RayWorker,
    WorkerLost,
    check_workers,
    ray_cluster,
    room_for,
)
from fedappeal.simulation.workers.process import processes
from fedappeal.simulation.workers.worker import Changes, EngineWorker, SentBefore, WorkerJob, apply_changes, models_of


class Remote(Protocol):
    """A worker in another process."""

    def begin(self, method: str, *arguments: Any) -> Callable[[], Any]:
        """Begin a call; return a function that waits for its result.

        Raises:
            WorkerLost: it does not answer any more; raised by what is returned, too.
        """


_EMPTY_RECORD = ArrayRecord()
"""In place of a record that a worker has already."""


def _bytes_of(model: ArrayRecord) -> list[bytes]:
    return [array.data for array in model.values()]


class WorkersGrid(VirtualClients):
    """A grid of virtual clients on workers, with their states here as their latest replies left them.

    A call of a worker brings it all messages since the last one. Models that it has from the last messages before
    are not sent again: clients train from the model that they have evaluated.
    """

    def __init__(self, workers: Sequence[Remote], clients: int, context: Callable[[int], Context]) -> None:
        """Begin without contexts and messages.

        Args:
            workers: the k-th of n has the clients k, k + n, k + 2 n and so on.
            clients: number of clients.
            context: makes the context of client 0..clients-1.
        """
        super().__init__(clients, context)
        self._workers = workers
        self._new: dict[int, list[Message]] = {}
        self._open: dict[str, tuple[int, str]] = {}
        """Worker and type of each message without a reply, by id."""
        self._models: dict[int, Sequence[tuple[ArrayRecord, list[bytes]]]] = {}
        """The latest that a worker was sent, each with its arrays' bytes: a strategy may change it in place."""
        self._reached: set[int] = set()

    def start(self) -> None:
        """Have all workers load their clients' data.

        Raises:
            ConfigError: they cannot be had.
        """
        self._results(dict.fromkeys(range(len(self._workers)), ("load",)))

    def take(self, message: Message) -> None:
        """Accept a message; it is brought to its worker when replies are pulled."""
        about = message.metadata
        number = (about.dst_node_id - FIRST_NODE) % len(self._workers)
        self._new.setdefault(number, []).append(message)
        self._open[about.message_id] = number, about.message_type

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return the replies that clients give now, to TRAIN first of all those of clients that need not train.

        The others then train at the same time, once it is known who does.

        Raises:
            WorkerLost: a worker has ended.
        """
        wanted: dict[int, list[str]] = {}
        kinds = set()
        for message_id in message_ids:
            if message_id in self._open:
                number, kind = self._open[message_id]
                wanted.setdefault(number, []).append(message_id)
                kinds.add(kind)
        replies: list[Message] = []
        for train in (False, True) if MessageType.TRAIN in kinds else (True,):
            calls = {number: ("answer", *self._news(number), ids, train) for number, ids in wanted.items()}
            replies = [self._reply(*answer) for answers in self._results(calls) for answer in answers]
            if replies:
                break
        return replies

    def _reply(self, reply: Message, changes: Changes) -> Message:
        del self._open[reply.metadata.reply_to_message_id]
        apply_changes(self.context(reply.metadata.src_node_id).state, changes)
        return reply

    def _results(self, calls: dict[int, tuple[Any, ...]]) -> list[Any]:
        """Return the results of calls of workers, which work side by side."""
        waits = [self._workers[number].begin(*call) for number, call in calls.items()]
        return [wait() for wait in waits]

    def _news(self, number: int) -> tuple[dict[int, Changes], list[Message], list[SentBefore]]:
        """Return a worker's new clients with their states, its new messages, and the records that it has already."""
        messages = self._new.pop(number, [])
        first = {message.metadata.dst_node_id for message in messages} - self._reached
        self._reached |= first
        states: dict[int, Changes] = {node: dict(self.context(node).state) for node in first}
        before = self._models.get(number, ())
        self._models[number] = [(model, _bytes_of(model)) for model in models_of(messages)] or before
        place_of = {
            id(model): place
            for place, (model, sent) in enumerate(before)
            if len(model) == len(sent) and all(map(is_, _bytes_of(model), sent))
        }
        sent_before = [
            (k, name, place_of[id(record)])
            for k, message in enumerate(messages)
            for name, record in message.content.items()
            if id(record) in place_of
        ]
        for k, name, _ in sent_before:
            messages[k] = copy_for_node(messages[k], messages[k].metadata.dst_node_id)
            messages[k].content[name] = _EMPTY_RECORD
        return states, messages, sent_before


@contextmanager
def actors(
    number: int, jobs: Callable[[int], Sequence[WorkerJob]], options: RayOptions
) -> Iterator[Sequence[RayWorker]]:
    """Yield workers on a cluster, during the block.

    Args:
        number: how many; 0: one a node.
        jobs: makes theirs, by their number.
        options: the cluster, and what each worker asks of it.

    Raises:
        ConfigError: the cluster cannot be reached, or has less than is asked for.
    """
    workers: list[RayWorker] = []
    with ray_cluster(options, number) as ray:
        work = jobs(number or sum(bool(node["Alive"]) for node in ray.nodes()))
        actor = ray.remote(num_cpus=options.cpus, num_gpus=options.gpus, max_restarts=0)(EngineWorker)
        with room_for(ray, len(work), options) as room:
            try:
                for job, place in zip(work, room, strict=True):
                    workers.append(RayWorker(ray, actor.options(scheduling_strategy=place).remote(job)))
                yield workers
            finally:
                for worker in workers:
                    ray.kill(worker.actor)


LOST_WORKER = "worker-lost"
"""Event of a run's folder."""


@contextmanager
def clients_on_workers(contexts: Contexts, simulation: Simulation, folder: RunFolder) -> Iterator[WorkersGrid]:
    """Yield a grid of virtual clients on processes of this machine, or on a Ray cluster.

    Args:
        contexts: makes theirs.
        simulation: how, in a mode that was chosen: ``layers``, ``vmap`` or ``sequential``.
        folder: the run's, which is told of a lost worker.

    Raises:
        ConfigError: Ray cannot be used, or has less than is asked for; what a worker finds wrong with the settings.
        WorkerLost: a worker has ended; the run can be continued.
    """
    options = RayOptions(simulation.ray, simulation.ray_cpus, simulation.ray_gpus)
    clients = contexts.clients
    check_workers(simulation.workers, contexts.plugins.config, options)

    def jobs(number: int) -> list[WorkerJob]:
        number = min(number, clients)
        threads = threads_of_each(simulation.threads, number, options)
        return [WorkerJob(contexts, list(range(k, clients, number)), simulation.mode, threads) for k in range(number)]

    here = actors(simulation.workers, jobs, options) if options.address else processes(jobs(simulation.workers))
    try:
        with frozen_objects(), here as workers:
            grid = WorkersGrid(workers, clients, contexts.of)
            grid.start()
            yield grid
    except WorkerLost as error:
        folder.event(LOST_WORKER, reason=str(error))
        raise
