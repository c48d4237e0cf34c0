"""What a client measured of one model, and what it compares that with."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from fedappeal.protocol.metric import ACCURACY, Metric
from fedappeal.settings.config import Scalar


@dataclass(frozen=True)
class Evaluation:
    """What a client measured of one model.

    Attributes:
        loss: mean loss on the split.
        score: value of the task's primary metric on the split; of a classifier its accuracy, in [0, 1].
        metric: the primary metric.
        others: the task's further metrics, by name.
    """

    loss: float
    score: float
    metric: Metric = ACCURACY
    others: Mapping[str, float] = field(default_factory=dict)

    @property
    def error(self) -> float:
        """How far the score is from the best: ``1 - accuracy``."""
        return self.metric.error(self.score)

    def inflated(self, factor: float) -> "Evaluation":
        """Return the measurement with loss and error (at most the largest) times a factor."""
        return replace(self, loss=factor * self.loss, score=self.metric.from_error(factor * self.error))


UNMEASURED = Evaluation(math.nan, math.nan)
"""Placeholder: not measured (NaN)."""


class JudgedByDefault:
    """Base of dataclasses whose ``judged`` is by default their ``evaluation``."""

    evaluation: Evaluation
    judged: Evaluation

    def __post_init__(self) -> None:
        if self.judged is None:
            object.__setattr__(self, "judged", self.evaluation)

    @property
    def loss(self) -> float:
        """F_k(w), the training loss of the model that was sent, measured as ``loss-mode`` says."""
        return self.evaluation.loss


@dataclass(frozen=True)
class Measured(JudgedByDefault):
    """What a joined client knows when it reports.

    Attributes:
        evaluation: of the model that was sent, on the client's training data.
        rho: the client's requirement rho_k.
        met: whether the model meets the requirement.
        priority: whether the client is served with priority.
        told: what the server told about the strategy, by key: its settings, and values of the round.
        judged: of the same model on what the client judges by, and compares with rho_k; None: ``evaluation``.
    """

    evaluation: Evaluation
    rho: float
    met: bool
    priority: bool = False
    told: Mapping[str, Scalar] = field(default_factory=dict)
    judged: Evaluation = None  # type: ignore[assignment]
