"""One round through Flower's own methods: good joins among one reply for each thing that can be wrong."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict

from fedappeal.protocol import keys
from strategies import Strategy
from strategies.rounds.strategy import rounds_of
from tests.grid import MemoryGrid, Volunteer, model, values_of

ROUND = 11
SENT = (1.0, 1.0)


@dataclass
class Join:
    """What one client sends: its model, what it reports besides, and its further ArrayRecords."""

    arrays: ArrayRecord
    metrics: dict[str, float] = field(default_factory=dict)
    records: dict[str, ArrayRecord] = field(default_factory=dict)


def ask(strategy: Strategy, server_round: int = ROUND, sent: Sequence[float] = SENT) -> Iterator[Message]:
    """Open a round of 30 nodes and return its messages, by node, with ids as a grid would have given them."""
    grid = MemoryGrid({node: Volunteer(str(node)) for node in range(10, 40)})
    messages = list(strategy.configure_train(server_round, model(*sent), ConfigRecord(), grid))
    grid.push_messages(messages)
    return iter(sorted(messages, key=lambda m: m.metadata.dst_node_id))


def answer(message: Message, join: Join | None = None, **metrics: float) -> Message:
    told = {keys.NUM_EXAMPLES: 1.0, keys.DECISION: 1.0, **(join.metrics if join else {})}
    told |= {k.replace("_", "-"): v for k, v in metrics.items()}
    records: Mapping[str, ArrayRecord] = {keys.ARRAYS: join.arrays, **join.records} if join else {}
    return Message(RecordDict({keys.METRICS: MetricRecord(told), **records}), reply_to=message)  # type: ignore[arg-type]


def defects(join: Join) -> list[Join]:
    """The same reply with one thing wrong each."""
    wrong = [model(np.nan, 7), model(7, np.inf), model(7), model(7, 7, 7)]
    wrong += [
        ArrayRecord({"v": Array(np.zeros(2, np.float32))}),
        ArrayRecord({"w": Array(np.zeros(2))}),
        ArrayRecord(),
    ]
    found = [Join(arrays, join.metrics, join.records) for arrays in wrong]
    for name in join.metrics.keys() - {keys.NUM_EXAMPLES}:
        without = {k: v for k, v in join.metrics.items() if k != name}
        found += [Join(join.arrays, m, join.records) for m in (without, join.metrics | {name: float("nan")})]
    for name in join.records:
        without_record = {k: v for k, v in join.records.items() if k != name}
        found.append(Join(join.arrays, join.metrics, without_record))
        found += [Join(join.arrays, join.metrics, join.records | {name: arrays}) for arrays in wrong]
    return found


def check_mixed(
    strategy: Strategy,
    joins: Sequence[Join],
    expected: Sequence[float],
    bad_claims: Sequence[dict[str, float]] = (),
) -> None:
    """Only the good joins move the model, in whatever order the replies are folded; then an empty round, no model."""
    messages = ask(strategy)
    good = [answer(next(messages), join) for join in joins]
    good += [answer(next(messages), decision=0), answer(next(messages), decision=-1)]
    bad = [Message(Error(2, "out of memory"), reply_to=next(messages)), answer(next(messages))]
    bad += [answer(next(messages), wrong) for wrong in defects(joins[0])]
    bad += [
        answer(next(messages), Join(joins[0].arrays, joins[0].metrics | claim, joins[0].records))
        for claim in bad_claims
    ]
    state = rounds_of(strategy).state()
    for order in (bad + good, good[::-1] + bad, good[1:] + bad[::-1] + good[:1]):
        rounds_of(strategy).restore(state)
        for _ in ask(strategy):
            pass
        arrays, metrics = strategy.aggregate_train(ROUND, order)
        assert values_of(arrays) == pytest.approx(expected, rel=1e-6, abs=1e-7)
        assert metrics is not None
        counts = {name: metrics[name] for name in ("joined", "sat-out", "left", "failed", "surplus")}
        assert counts == {"joined": len(joins), "sat-out": 1, "left": 1, "failed": len(bad), "surplus": 0}
        assert all("\n" not in reason for reason in rounds_of(strategy).record.failures.values())
    arrays, _ = strategy.aggregate_train(ROUND + 1, [answer(m, decision=0) for m in ask(strategy, ROUND + 1)])
    assert arrays is None
    for _ in ask(strategy, ROUND + 2):
        pass
    arrays, _ = strategy.aggregate_train(ROUND + 2, [])
    assert arrays is None
