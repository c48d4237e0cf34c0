"""A Flower `Grid` in memory: nodes are callables, time is a fake clock, and nothing sleeps."""

import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from unittest.mock import patch

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result

from fedappeal.flower.grid.inbox import Run
from fedappeal.flower.messages import be_sender, set_message_id
from fedappeal.protocol import keys
from strategies import Hooks, RoundRecord, Strategy
from strategies.rounds.exchange.exchange import Channel
from strategies.rounds.exchange.members import Member
from strategies.rounds.exchange.pace import Pace
from strategies.rounds.intake import Intake
from strategies.rounds.round import Round
from strategies.rounds.strategy import rounds_of

SERVER_NODE = 1

Handler = Callable[[Message], Message | None]


class Clock:
    """Time that only moves where the program sleeps."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        assert seconds >= 0
        self.now += seconds


class MemoryGrid(Grid):
    """Nodes that answer synchronously; a reply is made when it is pulled, at the earliest after its delay.

    A handler that raises answers with Flower's error reply, one that returns None never answers.

    Attributes:
        nodes: handler by node id; remove one and it is offline.
        delay: seconds until a node answers a message.
        unreachable: nodes that are listed, but to which no message can be pushed.
        backwards: hand replies over in reverse order.
        pushed: every message that was pushed, with the time.
        held: most models of replies that were alive at one time.
    """

    def __init__(self, nodes: dict[int, Handler] | None = None) -> None:
        be_sender(run_id=7, node_id=SERVER_NODE, task_id=9)
        self.nodes: dict[int, Handler] = dict(nodes or {})
        self.clock = Clock()
        self.delay: Callable[[int, Message], float] = lambda node, message: 0.0
        self.unreachable: set[int] = set()
        self.backwards = False
        self.pushed: list[tuple[float, Message]] = []
        self.held = 0
        self._waiting: dict[str, tuple[float, Message]] = {}
        self._models: list[weakref.ref[ArrayRecord]] = []

    def set_run(self, run: Run) -> None:
        raise NotImplementedError

    @property
    def run(self) -> Run:
        raise NotImplementedError

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        return list(self.nodes)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        ids = []
        for message in messages:
            node = message.metadata.dst_node_id
            if node not in self.nodes or node in self.unreachable:
                ids.append("")
                continue
            ids.append(f"m{len(self.pushed)}")
            set_message_id(message, ids[-1])
            self._waiting[ids[-1]] = (self.clock() + self.delay(node, message), message)
            self.pushed.append((self.clock(), message))
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        replies = []
        for message_id in message_ids:
            due, message = self._waiting.get(message_id, (float("inf"), None))
            if message is None or due > self.clock() or message.metadata.dst_node_id not in self.nodes:
                continue
            del self._waiting[message_id]
            if (reply := self._answer(message)) is not None:
                replies.append(reply)
        return replies[::-1] if self.backwards else replies

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        return self.pull_messages(self.push_messages(messages))

    def _answer(self, message: Message) -> Message | None:
        try:
            reply = self.nodes[message.metadata.dst_node_id](message)
        except Exception as error:
            return Message(Error(2, f"{type(error).__name__}: {error}"), reply_to=message)
        if reply is not None and reply.has_content():
            self._models += [weakref.ref(r) for r in reply.content.values() if isinstance(r, ArrayRecord)]
            self._models = [ref for ref in self._models if ref() is not None]
            self.held = max(self.held, len(self._models))
        return reply

    def sent(self, kind: str, server_round: int | None = None) -> list[Message]:
        """The messages of one kind (of one round), in the order in which they were pushed."""
        found = [m for _, m in self.pushed if m.metadata.message_type == kind]
        return [m for m in found if server_round is None or m.metadata.group_id == str(server_round)]

    def asked(self, server_round: int) -> list[int]:
        """The nodes that a round asked to train, in order."""
        return [m.metadata.dst_node_id for m in self.sent("train", server_round)]


def model(*values: float) -> ArrayRecord:
    """A float32 model with one array."""
    return ArrayRecord({"w": Array(np.array(values, dtype=np.float32))})


def values_of(record: ArrayRecord | None) -> list[float]:
    """The values of such a model."""
    assert record is not None
    return [float(v) for v in record["w"].numpy()]


@dataclass
class Volunteer:
    """A scripted client.

    Attributes:
        name: its client-id.
        decision: what it answers to TRAIN: a number, or a function of what it was told; an exception is raised,
            None is no answer.
        local: its model after training: what is added to the model that was sent.
        examples: num-examples.
        metrics: what it reports besides, when it joins.
        evaluation: what it answers to EVALUATE; None is no answer.
        refuses: why it does not fit the run (an error reply to the roll call).
        data_refused: why its own data do not fit the run (an answer without metrics).
        approval: what it answers to the roll call of its owner's approval; empty: the run is approved.
        left: what it says to the roll call about having left; None: the truth.
    """

    name: str
    decision: object = 1
    local: float = 1.0
    examples: int = 1
    metrics: dict[str, float] = field(default_factory=dict)
    evaluation: dict[str, float] | None = field(default_factory=dict)
    role: str = keys.SEEN
    refuses: str = ""
    data_refused: str = ""
    approval: str = ""
    left: bool | None = None
    gone: bool = False
    got: list[Message] = field(default_factory=list)

    def __call__(self, message: Message) -> Message | None:
        self.got.append(message)
        kind = message.metadata.message_type
        if kind == "query":
            if self.refuses:
                raise ValueError(self.refuses)
            if self.data_refused:
                info = ConfigRecord({keys.CLIENT_ID: self.name, keys.DATA_REFUSED: self.data_refused})
                return Message(RecordDict({keys.INFO: info}), reply_to=message)
            if self.approval:
                info = ConfigRecord({keys.CLIENT_ID: self.name, keys.APPROVAL: self.approval})
                return Message(RecordDict({keys.INFO: info}), reply_to=message)
            left = self.gone if self.left is None else self.left
            info = ConfigRecord({keys.CLIENT_ID: self.name, keys.ROLE: self.role, keys.LEFT_RUN: int(left)})
            return self._reply(message, {}, {keys.INFO: info})
        if kind == "evaluate":
            return None if self.evaluation is None else self._reply(message, self.evaluation, {})
        decision = self.decision
        if callable(decision):
            decision = decision(message.content.config_records[keys.CONFIG])
        if decision is None:
            return None
        if isinstance(decision, Exception):
            raise decision
        assert isinstance(decision, int)
        self.gone = self.gone or decision == -1
        if decision != 1:
            return self._reply(message, {keys.DECISION: decision}, {})
        sent = message.content.array_records[keys.ARRAYS]
        trained = ArrayRecord({k: Array((a.numpy() + self.local).astype(a.dtype)) for k, a in sent.items()})
        return self._reply(message, {keys.DECISION: 1, **self.metrics}, {keys.ARRAYS: trained})

    def _reply(
        self, message: Message, metrics: dict[str, float], records: dict[str, ArrayRecord | ConfigRecord]
    ) -> Message:
        content = RecordDict({keys.METRICS: MetricRecord({keys.NUM_EXAMPLES: self.examples, **metrics}), **records})
        return Message(content, reply_to=message)


class Watch(Hooks):
    """Keeps all that the round loop tells, and calls functions before and after a round.

    Attributes:
        records: the record of each round.
        models: the values of the model after each round.
        before: by round, called when it starts; ``after``: when it is over.
    """

    def __init__(
        self,
        before: dict[int, Callable[[], None]] | None = None,
        after: dict[int, Callable[[], None]] | None = None,
    ) -> None:
        self.before, self.after = before or {}, after or {}
        self.records: list[RoundRecord] = []
        self.models: list[list[float]] = []
        self.enrolled: list[tuple[str, int]] = []
        self.refused: dict[int, str] = {}
        self.waited: list[tuple[int, int, float, list[int]]] = []

    def on_waiting(self, enrolled: int, wanted: int, seconds: float, silent: Sequence[int]) -> None:
        self.waited.append((enrolled, wanted, seconds, list(silent)))

    def on_enrolled(self, member: Member, enrolled: int) -> None:
        self.enrolled.append((member.client_id, enrolled))

    def on_refused(self, node_id: int, reason: str) -> None:
        self.refused[node_id] = reason

    def on_round_start(self, server_round: int) -> None:
        self.before.get(server_round, lambda: None)()

    def on_round_end(self, record: RoundRecord, arrays: ArrayRecord) -> None:
        self.records.append(record)
        self.models.append(values_of(arrays))
        self.after.get(record.server_round, lambda: None)()


@contextmanager
def time_of(grid: MemoryGrid, pace: Pace | None = None) -> Iterator[None]:
    """Let the round loop wait on the grid's clock; ``pace``: what it remembers of answer times."""
    channel = partial(Channel, clock=grid.clock, sleep=grid.clock.sleep, pace=pace or Pace())
    with patch("strategies.rounds.loop.Channel", channel):
        yield


def opened(strategy: Strategy, number: int, arrays: ArrayRecord) -> Round:
    """Begin one round of a strategy."""
    return intake(strategy, number, arrays).round


def intake(strategy: Strategy, number: int, arrays: ArrayRecord) -> Intake:
    """Begin one round of a strategy; what takes its replies."""
    rounds = rounds_of(strategy)
    return rounds.begin(rounds.new_round(number, arrays))


def run(
    strategy: Strategy,
    grid: MemoryGrid,
    rounds: int,
    watch: Watch | None = None,
    pace: Pace | None = None,
    **start: object,
) -> tuple[Result, Watch]:
    """Run a whole federation from the model 0, on the grid's clock."""
    watch = watch or Watch()
    with time_of(grid, pace):
        result = strategy.start(grid, model(0), rounds, hooks=watch, **start)  # type: ignore[arg-type]
    return result, watch
