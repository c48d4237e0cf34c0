"""What a client measured of one model, and what it compares that with."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from fedappeal.protocol.config import Scalar


@dataclass(frozen=True)
class Evaluation:
    """What a client measured of one model.

    Attributes:
        loss: mean loss on the split.
        accuracy: on the split, in [0, 1].
    """

    loss: float
    accuracy: float

    @property
    def error(self) -> float:
        """``1 - accuracy``."""
        return 1.0 - self.accuracy

    def inflated(self, factor: float) -> "Evaluation":
        """Return the measurement with loss and error (at most 1) times a factor."""
        return Evaluation(factor * self.loss, 1.0 - min(1.0, factor * self.error))


UNMEASURED = Evaluation(math.nan, math.nan)
"""Placeholder: not measured (NaN)."""


@dataclass(frozen=True)
class Measured:
    """What a joined client knows when it reports.

    Attributes:
        evaluation: of the model that was sent, on the client's training data.
        rho: the client's requirement rho_k.
        met: whether the model meets the requirement.
        priority: whether the client is served with priority.
        told: what the server told about the strategy, by key: its settings, and values of the round.
    """

    evaluation: Evaluation
    rho: float
    met: bool
    priority: bool = False
    told: Mapping[str, Scalar] = field(default_factory=dict)

    @property
    def loss(self) -> float:
        """F_k(w), the training loss of the model that was sent."""
        return self.evaluation.loss
