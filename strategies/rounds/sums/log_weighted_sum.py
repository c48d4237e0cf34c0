"""A running weighted sum of models whose weights are given by their logarithms."""

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from strategies.rounds.sums.weighted_sum import CheckedModel, WeightedSum

if TYPE_CHECKING:
    from flwr.app import ArrayRecord

_LARGEST = 700.0
"""Largest exponent that is raised: exp(709.8) overflows a float64."""


@dataclass
class LogWeightedSum:
    """``sum_k a_k w_k`` in units of the largest a_k so far, so that no a_k overflows.

    Attributes:
        sent: the model that was sent.
        sum: the models, each times ``a_k / unit``.
        log_unit: logarithm of the unit; minus infinity while every a_k was 0.
    """

    sent: "ArrayRecord"
    sum: WeightedSum = field(init=False)
    log_unit: float = -math.inf

    def __post_init__(self) -> None:
        self.sum = WeightedSum(self.sent)

    def add_checked(self, values: CheckedModel, log_weight: float) -> None:
        """Add a model that the sum has checked; ``log_weight``: the logarithm of a_k, less than infinity."""
        if log_weight > self.log_unit:
            if self.sum.count:
                self.sum.rescale(math.exp(self.log_unit - log_weight))
            self.log_unit = log_weight
        self.sum.add_checked(values, self.in_units(log_weight))

    def in_units(self, log_term: float) -> float:
        """Return a term, given by its logarithm, in units of the largest a_k."""
        return 0.0 if self.log_unit == -math.inf else math.exp(min(_LARGEST, log_term - self.log_unit))
