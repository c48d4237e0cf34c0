r"""q-FFL by q-FedAvg: the higher a client's loss, the more it counts.

Li, Sanjabi, Beirami, Smith: "Fair Resource Allocation in Federated Learning". ICLR 2020. The objective is
``sum_k F_k(w)^(q+1) / (q+1)`` over the clients (equation 2, p_k = 1/m); q = 0 is unweighted FedAvg, and a large q
approaches the worst client's loss. Algorithm 2, with w_k the model that client k trained from w and L = 1 /
learning rate::

    dw_k    = L (w - w_k)
    Delta_k = F_k^q dw_k
    h_k     = q F_k^(q-1) ||dw_k||^2 + L F_k^q
    w       <- w - sum_k Delta_k / sum_k h_k

L cancels from all but one place, so this is a step towards the mean of the models, weighted by ``a_k = F_k^q``::

    w <- w - sum_k a_k (w - w_k) / sum_k (a_k + b_k),      b_k = q L F_k^(q-1) ||w - w_k||^2

F_k is the training loss of the model that was sent. A client with F_k = 0 is at the minimum of its term: for q > 0 it
has no weight and no say in the step size (the limit for a smooth loss, where ``||grad F_k||^2 <= 2 L F_k``).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np
from pydantic import Field

from fedappeal.core.requirement import Measured
from fedappeal.protocol import keys
from fedappeal.settings.config import ConfigError, Positive
from strategies.rounds.algorithm import Influence
from strategies.rounds.round import KEEP_MODEL, Kept, Model, Reply, Round, log
from strategies.rounds.strategy import Claims, Strategy, StrategySettings
from strategies.rounds.sums.influence import squared_distance
from strategies.rounds.sums.weighted_sum import LogWeightedSum

_LARGEST_Q = 1e6
"""Up to here ``q log F`` is exact to 1e-6 for every float64 F; the worst client alone counts long before."""


def log_terms(loss: float, distance: float, q: float, learning_rate: float) -> tuple[float, float]:
    """Return the logarithms of a client's a_k and b_k; minus infinity for 0.

    Args:
        loss: F_k, at least 0.
        distance: ``||w - w_k||^2``, at least 0.
        q: at least 0.
        learning_rate: 1 / L, more than 0.
    """
    if q == 0:
        return 0.0, -math.inf
    if loss == 0:
        return -math.inf, -math.inf
    gap = math.log(distance) if distance else -math.inf
    return q * math.log(loss), math.log(q) - math.log(learning_rate) + (q - 1) * math.log(loss) + gap


@dataclass
class ScaledSum(LogWeightedSum):
    """``sum a_k w_k`` with ``sum b_k``.

    Attributes:
        log_curvature: logarithm of ``sum b_k``.
    """

    log_curvature: float = -math.inf

    def add(self, arrays: Model, loss: float, q: float, learning_rate: float, counts: float) -> None:
        """Take in one local model with its loss; ``counts`` of its two terms count.

        Raises:
            Refused: if the model does not fit; nothing is changed.
        """
        checked = self.sum.check(arrays)
        distance = squared_distance(self.sent, arrays) if q else 0.0
        log_a, log_b = (term + log(counts) for term in log_terms(loss, distance, q, learning_rate))
        self.add_checked(checked, log_a)
        self.log_curvature = float(np.logaddexp(self.log_curvature, log_b))


class LossInfluence(Influence):
    """Clients are compared by a_k."""

    def log_weight(self, round: Round, reply: Reply) -> float:
        """Return the logarithm of a_k = F_k^q."""
        return log_terms(reply.claim(keys.LOSS, low=0.0), 0.0, self.settings.q, 1.0)[0]


class QFedAvg(Strategy):
    """q-FFL (Li et al., ICLR 2020): the higher a client's loss, the more it counts."""

    name = "qfedavg"
    needs_losses = True
    influence = LossInfluence
    still_open = "a client that claims no loss makes the server's step shorter where q < 1"
    from_run: ClassVar[Mapping[str, str]] = {"learning_rate": "learning-rate"}

    class Settings(StrategySettings):
        """q-FFL's settings."""

        q: Annotated[float, Field(ge=0, le=_LARGEST_Q)] = 1.0
        """q; 0 is unweighted FedAvg"""
        learning_rate: Positive | None = None
        """1 / L; not set: the clients' learning-rate; follows its schedule"""

    settings: Settings

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        if self.settings.learning_rate is None:
            raise ConfigError("qfedavg.learning-rate is missing: the clients' learning rate, 1 / L")
        self.learning_rate = self.settings.learning_rate

    def report(self, measured: Measured) -> Claims:
        """Return F_k of the model that was sent."""
        return {keys.LOSS: measured.loss}

    def begin(self, round: Round) -> None:
        """Begin with nothing."""
        round.carry = ScaledSum(round.model)

    def add(self, round: Round, reply: Reply) -> None:
        """Take in one local model with its loss.

        Raises:
            Refused: for a loss below 0 or a model that does not fit.
        """
        loss = reply.claim(keys.LOSS, low=0.0)
        learning_rate = self.learning_rate * round.lr_share
        round.carry.add(reply.arrays, loss, self.settings.q, learning_rate, reply.counts)

    def finish(self, round: Round) -> Model | Kept:
        """Return ``w - sum a_k (w - w_k) / sum (a_k + b_k)``.

        It is w where all losses are 0. The number for the history is the step: the share of the way to the weighted
        mean.
        """
        gathered: ScaledSum = round.carry
        if not gathered.sum.count:
            return KEEP_MODEL
        weight = gathered.sum.weight
        if weight == 0:
            round.metrics["step"] = 0.0
            return gathered.sum.combine(keep=1.0, scale=0.0)
        denominator = weight + gathered.in_units(gathered.log_curvature)
        round.metrics["step"] = step = weight / denominator
        return gathered.sum.combine(keep=1.0 - step, scale=1.0 / denominator)
