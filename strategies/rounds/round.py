"""One round as an object, and what the strategy tells its clients."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fedappeal.protocol.packing import Layout
from fedappeal.settings.config import Scalar
from strategies.rounds.exchange.members import Members
from strategies.rounds.hooks import RoundRecord
from strategies.rounds.model import Layers, Model, layers_of, model_of_layers
from strategies.rounds.sums.influence import Bounds
from strategies.rounds.sums.weighted_sum import WeightedSum


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
        """Return a model's layers by name, as read-only views; None: of the model that is sent.

        Raises:
            ValueError: the model has other layers.
        """
        return layers_of(self.model if model is None else model, self.layout)

    def model_of(self, layers: Layers) -> Model:
        """Return layers as a model, in the form of the one that is sent.

        Raises:
            ValueError: the layers have other names, shapes or dtypes.
        """
        return model_of_layers(layers, self.model, self.layout)
