"""Time and peak memory of aggregating a round's replies into the next global model.

Every strategy takes the same replies, one after another; beside it stand Flower's FedAvg and one plain pass over the
same bytes (NumPy multiply-add), and for ADA-GD a float64 Gram matrix and an SVD of the same gradients. Memory is
beyond the replies, each of which has bytes of its own and comes when it is asked for, as from a grid.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np

from benchmarks.run import Figures, Row, peak_mib, timed

SIZES = {"1.2M": 1_200_000, "11.7M": 11_700_000}
COUNTS = (10, 100)
DISTINCT = 10
"""Different models among the replies: more would not fit into a laptop's memory, fewer would sit in its caches."""
LEAVING = 10
"""Clients of ADA-GD that are predicted to leave."""
STRATEGIES: Mapping[str, Mapping[str, Any]] = {
    "maxfl": {},
    "fedalign": {"epsilon": 10.0, "warmup_rounds": 0, "global_loss": "stale"},
    "fedavg": {},
    "qfedavg": {"q": 1.0, "learning_rate": 0.1},
    "scaffold": {},
    "mwfed": {"local_steps": 10},
    "pfedme": {},
    "adagd": {"step_size": 1e-6, "precision": 0.3},
}


class Replies:
    """A round's replies: every client joins, reports what any strategy asks for, and sends one of a few models."""

    def __init__(self, size: int, count: int, two: bool) -> None:
        from flwr.app import Array, ArrayRecord

        from fedappeal.flower.messages import be_server

        # Flower takes a message's run and source from the process it is made in.
        be_server(1, 1, 1)
        logging.getLogger("flwr").setLevel(logging.WARNING)
        rng, self.count, self._two = np.random.default_rng(0), count, two
        self.sent = ArrayRecord({"flat": Array(np.zeros(size, np.float32))})
        self.models = [rng.standard_normal(size, dtype=np.float32) for _ in range(min(DISTINCT, count))]
        self._records = [ArrayRecord({"flat": Array(model)}) for model in self.models]

    def messages(self, fresh: bool = False) -> Iterator[Any]:
        """Yield the replies, with a second record where SCAFFOLD needs one; ``fresh``: with bytes of their own."""
        from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

        from fedappeal.protocol import keys
        from strategies.fedalign.strategy import PRIORITY
        from strategies.maxfl import APPEAL_WEIGHT
        from strategies.mwfed import SATISFIED
        from strategies.scaffold import CONTROL_DELTA

        for i in range(self.count):
            # At most twice ADA-GD's precision for the first, which are then predicted to leave.
            loss = 0.5 if i < min(LEAVING, self.count - 1) else 1.5
            said = {keys.NUM_EXAMPLES: 100 + i, keys.DECISION: 1, keys.LOSS: loss, APPEAL_WEIGHT: 0.1}
            content = RecordDict(
                {keys.METRICS: MetricRecord({**said, SATISFIED: i % 2, PRIORITY: (i + 1) % 2})}  # type: ignore[dict-item]
            )
            for name in (keys.ARRAYS, CONTROL_DELTA)[: 1 + self._two]:
                k = i % len(self.models)
                content[name] = ArrayRecord({"flat": Array(self.models[k].copy())}) if fresh else self._records[k]
            yield Message(content, reply_to=Message(RecordDict({keys.CONFIG: ConfigRecord({})}), i + 2, "train"))


def aggregate(name: str, replies: Replies, messages: Iterable[Any]) -> None:
    """Aggregate one round by one of our strategies."""
    from fedappeal.core.registry import STRATEGIES as REGISTRY
    from strategies.rounds.exchange.members import Member

    strategy = REGISTRY.load(name)(**STRATEGIES[name])
    nodes = range(2, replies.count + 2)
    members = {node: Member(str(node), node, "seen", node % 2 == 0, 100 + node - 2) for node in nodes}
    for member in members.values():
        strategy.members.enrol(member)
    strategy.members.set_online(members)
    if name == "fedalign":
        strategy.take_up({"fedalign": {"thetas": 0.0, "updates": 0, "global-loss": 1.0}})
    this_round = strategy.open_round(1, replies.sent)
    strategy.train_messages(this_round, strategy.members.online(), {}, 60.0)
    for message in messages:
        strategy.take(this_round, members[message.metadata.src_node_id], message)
    strategy.close_round(this_round)
    if this_round.record.failures:
        raise RuntimeError(f"{name}: replies were left out: {this_round.record.failures}")


def flower(messages: Iterable[Any]) -> None:
    """Aggregate one round by Flower's FedAvg."""
    from flwr.serverapp.strategy import FedAvg

    FedAvg(weighted_by_key="num-examples").aggregate_train(1, list(messages))


def aggregation(name: str, size: int, count: int, rounds: int) -> Figures:
    """Return the seconds of aggregating, and the memory beyond the replies."""
    replies = Replies(size, count, two=name == "scaffold")
    work = flower if name == "Flower's FedAvg" else partial(aggregate, name, replies)
    before = peak_mib("VmRSS")
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")  # the peak so far is this process's past
    work(replies.messages(fresh=True))
    memory = peak_mib() - before
    ready = [list(replies.messages()) for _ in range(rounds + 1)]
    return {**timed(lambda: work(ready.pop()), rounds), "MiB": memory}


def bare(work: Callable[[list[Any], int], object], size: int, count: int, rounds: int) -> Figures:
    """Return the seconds of some work on the same models."""
    models = Replies(size, count, two=False).models
    return timed(lambda: work(models, count), rounds)


def plain_pass(models: list[Any], count: int) -> None:
    """Multiply and add each model once: ``total += weight * values``."""
    total = np.zeros_like(models[0])
    for i in range(count):
        total += np.float32(0.1) * models[i % len(models)]


def plain_pass_in_place(models: list[Any], count: int) -> None:
    """Do the same without fresh memory for each product: the least that a weighted average needs."""
    total, scratch = np.zeros_like(models[0]), np.empty_like(models[0])
    for i in range(count):
        np.multiply(models[i % len(models)], np.float32(0.1), out=scratch)
        np.add(total, scratch, out=total)


def gram64(models: list[Any], count: int) -> Any:
    """Return the float64 Gram matrix of gradients."""
    rows = np.stack([model.astype(np.float64) for model in models[:LEAVING]])
    return rows @ rows.T


def svd(models: list[Any], count: int) -> Any:
    """Decompose the same gradients in float64."""
    return np.linalg.svd(np.stack([model.astype(np.float64) for model in models[:LEAVING]]), full_matrices=False)


_BARE = {
    "plain pass": plain_pass,
    "plain pass in place": plain_pass_in_place,
    f"Gram matrix of {LEAVING}, float64": gram64,
    f"SVD of {LEAVING}, float64": svd,
}

ROWS = {
    f"aggregation/{count}x{label}": Row(
        {
            **{name: partial(bare, work, size, count) for name, work in _BARE.items()},
            **{name: partial(aggregation, name, size, count) for name in ("Flower's FedAvg", *STRATEGIES)},
        },
        "plain pass",
        "s",
        rounds=5,
    )
    for label, size in SIZES.items()
    for count in COUNTS
}
