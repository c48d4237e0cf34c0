"""One round as an object: the model, what clients are told, and their checked replies."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedappeal.protocol.foreign_text import one_line
from fedappeal.protocol.keys import Decision
from fedappeal.protocol.packing import Layout, array_record, view
from fedappeal.settings.config import Scalar
from strategies.rounds.exchange.members import Member, Members
from strategies.rounds.hooks import RoundRecord
from strategies.rounds.sums.influence import Bounds
from strategies.rounds.sums.weighted_sum import Refused, WeightedSum

if TYPE_CHECKING:
    from flwr.app import ArrayRecord, RecordDict

    Model = ArrayRecord
else:
    Model = Any  # where settings are read, Flower need not be loaded

Layers = Mapping[str, NDArray[Any]]
"""A model's parameters and buffers by name."""


def log(value: float) -> float:
    """Return the logarithm of a number of at least 0; minus infinity for 0."""
    return math.log(value) if value else -math.inf


def claim(metrics: Mapping[str, Any], key: str, low: float = -math.inf, high: float = math.inf) -> float:
    """Return a number that a client reported, if it is there and inside its bounds.

    Raises:
        Refused: otherwise.
    """
    if key not in metrics:
        raise Refused(f"reply has no '{key}'")
    value = float(metrics[key])
    if not low <= value <= high:
        raise Refused(f"{key} = {value} is not allowed: {low} to {high}")
    return value


@dataclass(frozen=True)
class Reply:
    """A checked reply to TRAIN.

    Attributes:
        member: the client.
        decision: what it decided.
        num_examples: training examples that it claims, at least 1.
        metrics: all that it reported; every number is finite.
        arrays: its model or gradient; empty where it did not join.
        records: the further ArrayRecords that were asked for, where it joined.
        counts: share of its weight that counts; less than 1 where its influence is bounded.
        sent: its model or gradient as it was sent, where its influence is bounded.
    """

    member: Member
    decision: Decision
    num_examples: int
    metrics: Mapping[str, Any]
    arrays: Model
    records: Mapping[str, Model] = field(default_factory=dict)
    counts: float = 1.0
    sent: Model | None = None

    def claim(self, key: str, low: float = -math.inf, high: float = math.inf) -> float:
        """Return a number that the client reported, if it is there and inside its bounds.

        Raises:
            Refused: otherwise.
        """
        return claim(self.metrics, key, low, high)


_ENOUGH = 3


def unexpected(error: Exception) -> str:
    """Return what a round's record says of an error that is no `Refused`, in one line."""
    return one_line(f"its reply cannot be used: {type(error).__name__}: {error}")


def check_faults(faults: Mapping[str, Exception], asked: int, joined: int) -> None:
    """Raise the first error of a round where the strategy is at fault, not a client.

    That is where it fails for every client that would have joined, and these are at least three, or all that were
    asked. No single client ends a run of others.

    Args:
        faults: by client-id.
        asked: clients that were asked.
        joined: clients whose reply was used.
    """
    if faults and not joined and len(faults) >= min(_ENOUGH, asked):
        raise next(iter(faults.values()))


@dataclass(frozen=True)
class Instructions:
    """Content of TRAIN messages besides the model and the general settings.

    Attributes:
        all: told to every client, by key.
        each: told to one client alone, by client-id; counts before ``all``.
        records: further ArrayRecords for every client, by name.
    """

    all: Mapping[str, Scalar] = field(default_factory=dict)
    each: Mapping[str, Mapping[str, Scalar]] = field(default_factory=dict)
    records: Mapping[str, Model] = field(default_factory=dict)


NOTHING = Instructions()


@dataclass
class Round:
    """One round.

    Attributes:
        model: the global model that is sent.
        members: the clients of the run.
        record: what has happened so far.
        sum: the joined clients' models, each times its weight.
        carry: what the strategy gathers of this round besides.
        end: why the run is over with this round; empty while it is not.
        lr_share: share of the run's learning rate with which its clients train; 1 but for a schedule.
        faults: errors that no check foresaw, by the client whose reply met them.
        bounds: on the influence of each client; None: none.
        layout: names, shapes and dtypes of the model's layers; None: the model is an array a layer.
        claimed_weight: sum of the joined clients' weights, as they would be without bounds.
    """

    model: Model
    members: Members
    record: RoundRecord
    carry: Any = None
    end: str = ""
    lr_share: float = 1.0
    faults: dict[str, Exception] = field(default_factory=dict)
    bounds: Bounds | None = None
    layout: Layout | None = None
    claimed_weight: float = 0.0

    def __post_init__(self) -> None:
        self.sum = WeightedSum(self.model)

    @property
    def number(self) -> int:
        """The number of the round, from 1."""
        return self.record.server_round

    @property
    def metrics(self) -> dict[str, float]:
        """Numbers for the history."""
        return self.record.metrics

    def layers(self, model: Model | None = None) -> Layers:
        """Return a model's layers by name, as read-only views, without a copy; None: of the model that is sent.

        Raises:
            ValueError: the model has other layers.
        """
        model = self.model if model is None else model
        return {n: view(array) for n, array in model.items()} if self.layout is None else self.layout.unpack(model)

    def model_of(self, layers: Layers) -> Model:
        """Return layers as a model, packed where the one that is sent is.

        Raises:
            ValueError: the layers have other names, shapes or dtypes.
        """
        if self.layout is None:
            return Layout.of(self.layers()).named(layers)
        return self.layout.pack(layers) if self.layout.is_packed(self.model) else self.layout.named(layers)


def packed(carried: Mapping[str, Mapping[str, Any]]) -> "RecordDict":
    """Return what is carried from round to round, named dicts, as Flower's records; an empty dict is left out."""
    from flwr.app import ConfigRecord, RecordDict

    state = RecordDict()
    for name, values in carried.items():
        if values:
            arrays = all(isinstance(value, np.ndarray) for value in values.values())
            state[name] = array_record(values) if arrays else ConfigRecord(dict(values))
    return state


def unpacked(state: "RecordDict") -> dict[str, dict[str, Any]]:
    """Return what `packed` was given; arrays are read-only."""
    from flwr.app import ArrayRecord

    return {
        name: {key: view(array) for key, array in record.items()} if isinstance(record, ArrayRecord) else dict(record)
        for name, record in state.items()
    }
