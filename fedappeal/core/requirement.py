"""The contract of requirements: what a client's rho_k is, and the base of its kinds."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

from fedappeal.core.measured import Evaluation
from fedappeal.core.plugins import Plugin
from fedappeal.protocol.packing import Arrays

LOSS, METRIC = "loss", "metric"
LOOKS = 20
"""Stretches of a solo training after which a client looks at its held-out data."""


@dataclass(frozen=True)
class Requirement:
    """What a client requires.

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
        """Return by how much a model is better than rho, in its units; NaN where it was not measured."""
        if self.of == METRIC:
            ahead = evaluation.score - self.rho
            return ahead if evaluation.metric.higher_is_better else -ahead
        return self.rho - evaluation.loss


class WarmUp(Protocol):
    """What a requirement may ask of its client before the first round."""

    def train(self, steps: int, learning_rate: float) -> Arrays:
        """Return the model that the client trains alone from w_0."""

    def path(self, steps: int, learning_rate: float) -> Iterator[Arrays]:
        """Yield w_0 and the models after each of `LOOKS` stretches of that training; momentum begins anew in each."""

    def train_loss(self, arrays: Arrays) -> float:
        """Return a model's loss on the client's training data, measured as ``loss-mode`` says."""

    @property
    def holds_out(self) -> bool:
        """Whether the client judges models by held-out data."""

    def judged_loss(self, arrays: Arrays) -> float:
        """Return a model's loss on what the client judges by: held-out data, or else its training data."""

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
