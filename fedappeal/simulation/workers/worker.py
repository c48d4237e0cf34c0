"""An engine worker, a process with a share of a run's clients.

It has their data and participants.
"""

import sys
from collections.abc import Mapping, MutableMapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from flwr.app import ArrayRecord, Message, MessageType, RecordDict

from client.data.cache import Cache, pick_device
from fedappeal.core.plugins import ALL
from fedappeal.protocol import keys
from fedappeal.protocol.packing import Form, Sums, content_size, model_of, view
from fedappeal.simulation.in_process_grid import FIRST_NODE, Contexts, InProcessGrid, clients_here
from fedappeal.simulation.pool import Pool
from fedappeal.simulation.process_wide import simulation_threads
from strategies.rounds.refusal import NotFinite, Refused
from strategies.rounds.sums.influence import zeros_like
from strategies.rounds.sums.weighted_sum import WeightedSum

Key = tuple[str, str]
"""The message that a model answers, and the name of its record."""
KeptModel = tuple[Form, int, str, bool]
"""What the server is told of a model that stays: the last fields of `fedappeal.protocol.packing.ModelHandle`."""
Changes = Mapping[str, Any]
"""Records of a client's state that changed, by name; None: it has gone."""


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


@dataclass(frozen=True)
class WorkerJob:
    """The parts from which a worker is made.

    Attributes:
        contexts: make its clients'; their device and folder are the same on each machine.
        mode: ``layers``, ``vmap`` or ``sequential``.
        threads: PyTorch threads.
        keeps: whether models stay here, and are added up here.
        path: where the program that starts it finds its modules.
    """

    contexts: Contexts
    mode: str
    threads: int
    keeps: bool = False
    path: tuple[str, ...] = ()


@dataclass(frozen=True)
class WorkerAnswer:
    """The outcome of one message on a worker.

    Attributes:
        message: its id.
        content: of the reply, without the models that stay here; None: an error.
        error: code and reason.
        kept: the models that stay here, by record, in the reply's order of names.
        changes: of the client's state.
    """

    message: str
    content: RecordDict | None
    error: tuple[int, str]
    kept: Mapping[str, KeptModel]
    changes: Changes


@dataclass
class _Clients:
    """The clients placed on this worker together.

    Attributes:
        grid: reaches them, and gives messages names of its own.
        asked: messages without an answer by these names, each with its id.
        reported: the states that the server knows, by node.
    """

    grid: InProcessGrid
    asked: dict[str, tuple[str, Message]] = field(default_factory=dict)
    reported: dict[int, dict[str, Any]] = field(default_factory=dict)

    def take(self, messages: Sequence[tuple[str, Message]]) -> None:
        """Add messages, by id."""
        names = self.grid.push_messages([message for _, message in messages])
        self.asked |= dict(zip(names, messages, strict=True))

    def change(self, node: int, changes: Changes) -> None:
        """Apply a client's changes of state."""
        state = self.grid.context(node).state
        apply_changes(state, changes)
        self.reported[node] = dict(state)

    def changes(self, node: int) -> Changes:
        """Return the changes of a client's state since the server knew it."""
        before, state = self.reported.get(node, {}), dict(self.grid.context(node).state)
        self.reported[node] = state
        return changes_between(before, state)


class EngineWorker:
    """A share of a run's clients; a Ray actor, or an object in a test."""

    def __init__(self, job: WorkerJob) -> None:
        """Begin without clients."""
        sys.path += [folder for folder in job.path if folder not in sys.path]
        self._job = job
        self._stack = ExitStack()
        self._threads = self._stack.enter_context(simulation_threads(job.threads))
        given = job.contexts.plugins.given
        self._cache = Cache(given.task, given.strategy_of)
        self._clients: dict[int, _Clients] = {}
        self._models: dict[Key, tuple[ArrayRecord, ArrayRecord]] = {}
        """Models that stay, and the ones that were sent."""

    def place(self, clients: Sequence[int]) -> None:
        """Add clients with their data."""
        contexts, config = self._job.contexts, self._job.contexts.plugins.config
        task = self._cache.task(config.task_settings(), contexts.data_dir, ALL)
        pool = Pool(task, sorted(clients), pick_device(contexts.device), config.holds_out)
        here = clients_here(contexts, pool, self._cache, self._job.mode, self._threads)
        placed = _Clients(self._stack.enter_context(here)[0])
        self._clients |= dict.fromkeys((FIRST_NODE + k for k in clients), placed)

    def close(self) -> None:
        """Restore the process's state.

        A process that ends needs none of it.
        """
        self._stack.close()

    def answer(
        self,
        messages: Sequence[tuple[str, Message]],
        wanted: Sequence[str],
        changes: Mapping[int, Changes],
        forgotten: Sequence[Key] = (),
    ) -> list[WorkerAnswer]:
        """Add messages, and answer some.

        Args:
            messages: new ones, by id.
            wanted: ids of those that are answered now; the others may run as far as they train with these.
            changes: of clients' states since they were last told of here, by node.
            forgotten: models that are of no use any more.
        """
        for key in forgotten:
            self._models.pop(key, None)
        for node, changed in changes.items():
            self._clients[node].change(node, changed)
        groups: dict[int, list[tuple[str, Message]]] = {}
        for name, message in messages:
            groups.setdefault(id(self._clients[message.metadata.dst_node_id]), []).append((name, message))
        answers = []
        for clients in {id(placed): placed for placed in self._clients.values()}.values():
            clients.take(groups.get(id(clients), []))
            answers += self._answers(clients, frozenset(wanted))
        return answers

    def _answers(self, clients: _Clients, wanted: frozenset[str]) -> list[WorkerAnswer]:
        left = [name for name, (message_id, _) in clients.asked.items() if message_id in wanted]
        answers = []
        while left:
            for reply in clients.grid.pull_messages(left):
                name = reply.metadata.reply_to_message_id
                left.remove(name)
                answers.append(self._answer(clients, *clients.asked.pop(name), reply))
        return answers

    def _answer(self, clients: _Clients, message_id: str, message: Message, reply: Message) -> WorkerAnswer:
        changes = clients.changes(message.metadata.dst_node_id)
        if reply.has_error():
            return WorkerAnswer(message_id, None, (reply.error.code, reply.error.reason or ""), {}, changes)
        if not self._job.keeps or message.metadata.message_type != MessageType.TRAIN:
            return WorkerAnswer(message_id, reply.content, (0, ""), {}, changes)
        sent, replaced = model_of(message.content), {}
        for name, record in reply.content.items():
            if isinstance(record, ArrayRecord):
                self._models[message_id, name] = record, sent
                replaced[name] = self._described(name, record, sent)
        content = RecordDict({name: ArrayRecord() if name in replaced else r for name, r in reply.content.items()})
        return WorkerAnswer(message_id, content, (0, ""), replaced, changes)

    def _described(self, name: str, record: ArrayRecord, sent: ArrayRecord) -> KeptModel:
        size = content_size(RecordDict({"": record}))
        try:
            WeightedSum(sent).check(record)
        except Refused as error:
            return {}, size, str(error), isinstance(error, NotFinite)
        form = {key: ((values := view(array)).shape, values.dtype.name) for key, array in sent.items()}
        return form, size, "", False

    def fold(self, parts: Sequence[tuple[Key, float]]) -> Sums:
        """Return the sum of records that stay here: by key, times a weight.

        Models count by their differences from the one that was sent.
        """
        total: WeightedSum | None = None
        for key, weight in parts:
            model, sent = self._models[key]
            total = total or WeightedSum(sent if key[1] == keys.ARRAYS else zeros_like(sent))
            total.add(model, weight)
        return total.differences() if total is not None else {}
