"""What a client measures of a model, and what it requires: rho_k, and the base of its kinds."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, ClassVar, Protocol

from fedappeal.core.plugins import Plugin
from fedappeal.protocol.metric import ACCURACY, Metric
from fedappeal.protocol.packing import Arrays
from fedappeal.settings.config import Scalar


@dataclass(frozen=True)
class Evaluation:
    """A client's measurements of one model.

    Attributes:
        loss: mean loss on the split.
        score: value of the task's primary metric on the split; of a classifier its accuracy, in [0, 1].
        metric: the primary metric.
        others: the task's further metrics, by name; a Flower app's may be lists of numbers.
    """

    loss: float
    score: float
    metric: Metric = ACCURACY
    others: Mapping[str, Any] = field(default_factory=dict)

    @property
    def error(self) -> float:
        """The score's distance from the best: ``1 - accuracy``."""
        return self.metric.error(self.score)

    def inflated(self, factor: float) -> "Evaluation":
        """Return the measurement with loss and error (at most the largest) times a factor."""
        return replace(self, loss=factor * self.loss, score=self.metric.from_error(factor * self.error))


UNMEASURED = Evaluation(math.nan, math.nan)
"""Placeholder: not measured (NaN)."""


class MeasuredOnce:
    """An evaluation that is measured when it is first read."""

    def __init__(self, measure: Callable[[], Evaluation]) -> None:
        self._measured = cache(measure)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._measured(), name)


@dataclass(frozen=True)
class Look:
    """A client's look at one model: its evaluation on each part of the data by which the client judges.

    Attributes:
        parts: one evaluation of the whole, or one of each half.
        sizes: numbers of examples of the parts.
    """

    parts: Sequence[Evaluation]
    sizes: Sequence[int]

    @property
    def whole(self) -> Evaluation:
        """The evaluation on all of the data: the mean over its examples."""
        if len(self.parts) == 1:
            return self.parts[0]
        count, first = sum(self.sizes), self.parts[0]

        def mean(values: Sequence[float]) -> float:
            return sum(size * value for size, value in zip(self.sizes, values, strict=True)) / count

        names = [name for name in first.others if all(name in part.others for part in self.parts)]
        others = {name: mean([part.others[name] for part in self.parts]) for name in names}
        score = mean([part.score for part in self.parts])
        return Evaluation(mean([part.loss for part in self.parts]), score, first.metric, others)


def choose(looks: Sequence[Look]) -> tuple[int, Evaluation]:
    """Return which model is best on all of the data, and what choosing is worth on data that took no part in it.

    Of two halves each judges the model that is best on the other (cross-fitting); a whole judges its own choice.

    Args:
        looks: at each of the models, on the same parts.
    """

    def best(losses: Sequence[float]) -> int:
        comparable = [loss if math.isfinite(loss) else math.inf for loss in losses]
        return comparable.index(min(comparable))

    parts = range(len(looks[0].parts))
    chosen_by = [best([look.parts[part].loss for look in looks]) for part in parts]
    judged = [looks[chosen_by[-1 - part]].parts[part] for part in parts]
    return best([look.whole.loss for look in looks]), Look(judged, looks[0].sizes).whole


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
    """The measurements on which a joined client's report rests.

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


LOSS, METRIC = "loss", "metric"
LOOKS = 20
"""Stretches of a solo training after which a client looks at its held-out data."""


@dataclass(frozen=True)
class Requirement:
    """A client's requirement of a model.

    Attributes:
        rho: the loss to stay below, or the value of the task's metric to reach; finite.
        solo: the solo model's arrays by name; empty where there is none.
        solo_score: its value of the task's metric on the client's test data; NaN where there is none.
        of: what rho is, ``loss`` or ``metric``.
    """

    rho: float
    solo: Arrays = field(default_factory=dict)
    solo_score: float = math.nan
    of: str = LOSS

    def met(self, evaluation: Evaluation) -> bool:
        """Whether a model meets the requirement; one that was not measured (NaN) does not."""
        if self.of == METRIC:
            return evaluation.metric.reaches(evaluation.score, self.rho)
        return evaluation.loss < self.rho

    def advantage(self, evaluation: Evaluation) -> float:
        """Return a model's advantage over rho, in its units; NaN if not measured."""
        if self.of == METRIC:
            ahead = evaluation.score - self.rho
            return ahead if evaluation.metric.higher_is_better else -ahead
        return self.rho - evaluation.loss


class WarmUp(Protocol):
    """The training and data that a requirement may use before the first round."""

    @property
    def federated_steps(self) -> int:
        """The steps that the client would train in the run, if it joined each round that asks it."""

    def train(self, steps: int, learning_rate: float) -> Arrays:
        """Return the model that the client trains alone from w_0."""

    def path(self, steps: int, learning_rate: float) -> Iterator[Arrays]:
        """Yield w_0 and the model after each of `LOOKS` stretches of training.

        Momentum begins anew in each.
        """

    def train_loss(self, arrays: Arrays) -> float:
        """Return a model's loss on the client's training data, measured as ``loss-mode`` says."""

    @property
    def holds_out(self) -> bool:
        """Whether the client judges models by held-out data."""

    def look(self, arrays: Arrays) -> Look:
        """Return a look at a model on the client's held-out data, in halves where it cross-fits.

        Else on its training data.
        """

    def judged_loss(self, arrays: Arrays) -> float:
        """Return a model's loss on the client's held-out data, else its training data."""

    def test_score(self, arrays: Arrays) -> float:
        """Return a model's value of the task's metric on the client's test data."""


class RequirementKind(Plugin):
    """Base of kinds of requirement: derive from it, and write `make`."""

    of: ClassVar[str] = LOSS
    """What rho_k is: ``loss`` or ``metric``."""
    trains: ClassVar[bool] = False
    """Whether rho_k depends on training alone from w_0."""

    def make(self, client: WarmUp) -> Requirement:
        """Return the requirement."""
        raise TypeError(f"requirement '{self.name}' has no method make")
