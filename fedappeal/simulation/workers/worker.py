"""An engine worker: a share of a run's clients, with their data and participants, in another process."""

from collections.abc import Mapping, MutableMapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from flwr.app import ArrayRecord, Message

from client.training.devices import pick_device
from client.training.task_learner import TaskLearners
from fedappeal.core.plugins import ALL
from fedappeal.simulation.in_process_grid import Contexts, clients_here
from fedappeal.simulation.pool import Pool
from fedappeal.simulation.process_wide import simulation_threads

Changes = Mapping[str, Any]
"""Records of a client's state that changed, by name; None: it has gone."""
SentBefore = tuple[int, str, int]
"""A record that a message comes without: the message, the record's name, its place among the latest models."""


def changes_between(before: Mapping[str, Any], after: Mapping[str, Any]) -> Changes:
    """Return the changes of a client's state."""
    gone: dict[str, Any] = dict.fromkeys(before.keys() - after.keys())
    return gone | {name: record for name, record in after.items() if before.get(name) is not record}


def apply_changes(state: MutableMapping[str, Any], changes: Changes) -> None:
    """Apply changes to a client's state."""
    for name, record in changes.items():
        if record is None:
            state.pop(name, None)
        else:
            state[name] = record


def models_of(messages: Sequence[Message]) -> list[ArrayRecord]:
    """Return the ArrayRecords of messages, each once."""
    records = (record for message in messages for record in message.content.values())
    return list({id(record): record for record in records if isinstance(record, ArrayRecord)}.values())


@dataclass(frozen=True)
class WorkerJob:
    """The parts from which a worker is made.

    Attributes:
        contexts: make its clients'; their device and folder are the same on each machine.
        clients: their numbers, ascending.
        mode: ``layers``, ``vmap`` or ``sequential``.
        threads: PyTorch threads.
    """

    contexts: Contexts
    clients: Sequence[int]
    mode: str
    threads: int


class EngineWorker:
    """A share of a run's clients; in a process of its own, or an object in a test."""

    def __init__(self, job: WorkerJob) -> None:
        """Begin without data."""
        self._job = job
        self._stack = ExitStack()
        self._reported: dict[int, dict[str, Any]] = {}
        """The clients' states that the server knows, by node."""
        self._models: list[ArrayRecord] = []
        """The latest that came."""

    def load(self) -> None:
        """Load the clients' data.

        Raises:
            ConfigError: they cannot be had.
        """
        job, plugins = self._job, self._job.contexts.plugins
        threads = self._stack.enter_context(simulation_threads(job.threads))
        learners = TaskLearners(task=plugins.given.task, strategy_of=plugins.given.strategy_of)
        task = learners.task(plugins.config.task_settings(), job.contexts.data_dir, ALL)
        pool = Pool(task, job.clients, pick_device(job.contexts.device), plugins.config.holds_out)
        here = clients_here(job.contexts, pool, learners, job.mode, threads)
        self._grid = self._stack.enter_context(here)[0]

    def close(self) -> None:
        """Restore the process's state.

        A process that ends needs none of it.
        """
        self._stack.close()

    def answer(
        self,
        states: Mapping[int, Changes],
        messages: Sequence[Message],
        sent_before: Sequence[SentBefore],
        wanted: Sequence[str],
        train: bool,
    ) -> list[tuple[Message, Changes]]:
        """Return replies to wanted messages, as `InProcessGrid.pull_messages`, with what changed of their clients.

        Args:
            states: of clients that have remembered something elsewhere, by node.
            messages: new ones.
            sent_before: those of their records that are here already, among the models of the messages before.
            wanted: ids of those that are answered now; the others may run as far as they train with these.
            train: whether clients train now, or only those answer that need not.
        """
        for node, state in states.items():
            apply_changes(self._grid.context(node).state, state)
            self._reported[node] = dict(state)
        for place, name, model in sent_before:
            messages[place].content[name] = self._models[model]
        self._models = models_of(messages) or self._models
        for message in messages:
            self._grid.take(message)
        replies = self._grid.pull_messages(wanted, train)
        return [(reply, self._changes(reply.metadata.src_node_id)) for reply in replies]

    def _changes(self, node: int) -> Changes:
        """Return the changes of a client's state since the server knew it."""
        before, state = self._reported.get(node, {}), dict(self._grid.context(node).state)
        self._reported[node] = state
        return changes_between(before, state)
