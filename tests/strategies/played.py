"""Several rounds through Flower's own methods, of clients that join, sit out or leave as a test says."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord
from numpy.typing import NDArray

from strategies import Strategy
from strategies.rounds.strategy import rounds_of
from tests.grid import MemoryGrid, Volunteer
from tests.strategies.rounds.mixed_round import Join, answer

Floats = NDArray[np.float64]
LEAVES = -1
"""A client's turn in which it leaves for good; without a turn it sits out."""


@dataclass(frozen=True)
class Joins:
    """A client's turn in which it joins: what local training adds to the model, its examples, what it reports."""

    update: Floats
    examples: int = 1
    metrics: dict[str, float] = field(default_factory=dict)


Turns = Mapping[int, Joins | int]
"""The turns of one round, by client."""


def drawn(
    seed: int, rounds: int, probabilities: Sequence[float], size: int = 5, loss: str = ""
) -> list[dict[int, Joins | int]]:
    """Rounds in which client k joins with its probability, with random updates, examples and losses."""
    rng = np.random.default_rng(seed)

    def joins() -> Joins:
        metrics = {loss: float(rng.uniform(0.1, 3.0))} if loss else {}
        return Joins(rng.normal(size=size), int(rng.integers(1, 50)), metrics)

    return [{k: joins() for k, p in enumerate(probabilities) if rng.random() < p} for _ in range(rounds)]


def play(
    make: Callable[[], Strategy], start: Floats, rounds: Sequence[Turns], clients: int, resumed_after: int = 0
) -> list[Floats]:
    """The model after each round; after ``resumed_after`` rounds another strategy takes the state up."""
    strategy, w, models = make(), start, list[Floats]()
    for number, turns in enumerate(rounds, 1):
        grid = MemoryGrid({100 + k: Volunteer(str(k)) for k in range(clients)})
        messages = list(strategy.configure_train(number, record(w), ConfigRecord(), grid))
        grid.push_messages(messages)
        replies = []
        for message in messages:
            turn = turns.get(message.metadata.dst_node_id - 100, 0)
            if isinstance(turn, Joins):
                join = Join(record(w + turn.update), turn.metrics)
                replies.append(answer(message, join, num_examples=turn.examples))
            else:
                replies.append(answer(message, decision=turn))
        arrays, _ = strategy.aggregate_train(number, replies)
        w = w if arrays is None else np.array(arrays["w"].numpy())
        models.append(w)
        if number == resumed_after:
            again = make()
            rounds_of(again).restore(rounds_of(strategy).state())
            strategy = again
    return models


def record(values: Floats) -> ArrayRecord:
    """A model of one float64 array."""
    return ArrayRecord({"w": Array(np.asarray(values, np.float64))})


def close(models: Sequence[Floats], expected: Sequence[Floats]) -> None:
    """Assert that the models of each round agree to 1e-6."""
    assert len(models) == len(expected)
    for got, wanted in zip(models, expected, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-6, atol=1e-9)
