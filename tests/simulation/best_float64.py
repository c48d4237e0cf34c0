"""Cross-fitting and `use = best` written a second time, in float64 and NumPy: a logistic model on the digits.

It shares with fedappeal the data, what each client holds out, and the draws of minibatches; nothing else.
"""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedappeal.protocol.draws import Minibatches
from fedappeal.settings.config import RunConfig
from fedappeal.tasks import load_task
from fedappeal.tasks.examples import Split, with_held_out

Numbers = NDArray[np.float64]
WEIGHT, BIAS = "output.weight", "output.bias"


class Data(NamedTuple):
    x: Numbers
    y: NDArray[np.int64]

    @classmethod
    def of(cls, split: Split) -> "Data":
        return cls(split.x.reshape(len(split), -1).double().numpy(), split.y.numpy())  # type: ignore[union-attr]


class Line(NamedTuple):
    """The model: a matrix and a bias."""

    a: Numbers
    b: Numbers

    def plus(self, factor: float, other: "Line") -> "Line":
        return Line(self.a + factor * other.a, self.b + factor * other.b)

    def times(self, factor: float) -> "Line":
        return Line(factor * self.a, factor * self.b)

    def chances(self, x: Numbers) -> Numbers:
        z = x @ self.a.T + self.b
        e = np.exp(z - z.max(axis=1, keepdims=True))
        return e / e.sum(axis=1, keepdims=True)

    def loss(self, data: Data) -> float:
        return float(-np.log(self.chances(data.x)[np.arange(len(data.y)), data.y]).mean())

    def descended(self, data: Data, rows: NDArray[np.int64], rate: float) -> "Line":
        line = self
        for batch in rows:
            wrong = line.chances(data.x[batch])
            wrong[np.arange(len(batch)), data.y[batch]] -= 1
            line = line.plus(-rate / len(batch), Line(wrong.T @ data.x[batch], wrong.sum(axis=0)))
        return line


def halves(split: Split) -> tuple[Data, Data] | None:
    """The examples in the order of their inputs' hashes, cut in the middle; equal inputs stay together."""
    data, count = Data.of(split), len(split)
    raw = split.x.numpy()  # type: ignore[union-attr]
    hashes = [hashlib.blake2b(b"fedappeal-held-out" + raw[i].tobytes(), digest_size=8).digest() for i in range(count)]
    first: list[int] = []
    for value in sorted(set(hashes)):
        same = [i for i in range(count) if hashes[i] == value]
        if len(first) + len(same) <= count // 2:
            first += same
    if count < 12:
        return None
    others = sorted(set(range(count)) - set(first))
    first.sort()
    return Data(data.x[first], data.y[first]), Data(data.x[others], data.y[others])


def cross_fitted(one: list[float], other: list[float], sizes: tuple[int, int]) -> tuple[int, float]:
    """The place of the best on both halves, and the loss on each half of the best of the other, over all examples."""
    both = [(sizes[0] * a + sizes[1] * b) / sum(sizes) for a, b in zip(one, other, strict=True)]
    by_one, by_other = int(np.argmin(one)), int(np.argmin(other))
    return int(np.argmin(both)), (sizes[1] * other[by_one] + sizes[0] * one[by_other]) / sum(sizes)


@dataclass
class Client:
    """One client of the run."""

    config: RunConfig
    number: int
    own: Line | None = None
    rho: float = 0.0
    taken: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        data = with_held_out(load_task(self.config.task_settings()).load(self.number))
        assert data.held_out is not None
        self.train, self.held_out, self.halves = Data.of(data.train), Data.of(data.held_out), halves(data.held_out)

    def rows(self, server_round: int, steps: int, purpose: str) -> NDArray[np.int64]:
        name, size = f"client-{self.number:04d}", self.config.batch_size
        return np.asarray(Minibatches(self.config.seed, name, server_round, len(self.train.y), steps, size, purpose))

    def chosen(self, models: list[Line]) -> tuple[int, float]:
        if self.halves is None:
            losses = [model.loss(self.held_out) for model in models]
            return int(np.argmin(losses)), min(losses)
        one, other = ([model.loss(half) for model in models] for half in self.halves)
        return cross_fitted(one, other, (len(self.halves[0].y), len(self.halves[1].y)))

    def require(self, start: Line, steps: int, rate: float) -> None:
        models = [start]
        for stretch in np.array_split(self.rows(0, steps, "warm-up"), 20):
            models.append(models[-1].descended(self.train, stretch, rate))
        self.rho = self.chosen(models)[1]

    def judge(self, shared: Line) -> tuple[Line, float]:
        """The model from which the client trains, and the loss by which it judges."""
        rate, steps = self.config.learning_rate, self.config.adaptation_steps
        adapted = shared.descended(self.train, self.rows(0, steps, "adaptation"), rate)
        models, starts, names = [shared, adapted], [shared, shared], ["as sent", "own steps"]
        if self.own is not None:
            for p in (0.05, 0.1, 0.2, 0.4, 0.7):
                blend = self.own.times(1 - p).plus(p, shared)
                models, starts, names = [*models, blend], [*starts, blend], [*names, f"blend {p}"]
        place, loss = self.chosen(models)
        self.taken.append(names[place])
        return starts[place], loss

    def trained(self, start: Line, server_round: int) -> Line:
        rows = self.rows(server_round, self.config.local_steps, "batches")
        self.own = start.descended(self.train, rows, self.config.learning_rate)
        return self.own


def rounds(
    config: RunConfig, initial: Mapping[str, NDArray[np.float32]]
) -> Iterator[tuple[list[str], Line, list[Client]]]:
    """Yield each round's decisions by client, and the model after it: FedAvg and MaxFL."""
    shared = Line(initial[WEIGHT].astype(np.float64), initial[BIAS].astype(np.float64))
    clients = [Client(config, number) for number in range(config.clients)]
    solo = config.section("solo")
    for client in clients:
        client.require(shared, int(solo["steps"]), float(solo["learning-rate"]))
    mandatory = config.mandatory_rounds
    assert isinstance(mandatory, int)
    for number in range(1, config.rounds + 1):
        moved, total, decisions = shared.times(0), 0.0, []
        for client in clients:
            start, loss = client.judge(shared)
            joins = number <= mandatory or loss < client.rho
            decisions.append("joined" if joins else "sat-out")
            if joins:
                s = 1 / (1 + np.exp(client.rho - loss))
                weight = len(client.train.y) if config.strategy == "fedavg" else s * (1 - s)
                moved = moved.plus(weight, client.trained(start, number).plus(-1, shared))
                total += weight
        if total:
            shared = shared.plus(1 / (total if config.strategy == "fedavg" else total + 1e-3), moved)
        yield decisions, shared, clients
