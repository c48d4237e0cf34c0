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
from typing import Unpack

import numpy as np
from flwr.app import ArrayRecord

from fedappeal.protocol import keys
from fedappeal.protocol.config import ConfigError, Scalar
from fedappeal.protocol.packing import view
from strategies.fold import WeightedSum
from strategies.members import Member
from strategies.replies import TrainReply, claim
from strategies.shared import Shared
from strategies.volunteers import VolunteerStrategy

_BLOCK = 1 << 15
_LARGEST_Q = 1e6
"""Up to here ``q log F`` is exact to 1e-6 for every float64 F; the worst client alone counts long before."""
_LARGEST = 700.0
"""Largest exponent that is raised: exp(709.8) overflows a float64."""


def squared_distance(one: ArrayRecord, other: ArrayRecord) -> float:
    """Return ``||w - w_k||^2`` of two models of one layout, summed in float64, block by block.

    Arrays that are not floating point (counters) do not count.
    """
    total = 0.0
    for name, array in one.items():
        a, b = view(array).reshape(-1), view(other[name]).reshape(-1)
        if not np.issubdtype(a.dtype, np.floating):
            continue
        for start in range(0, a.size, _BLOCK):
            block = slice(start, start + _BLOCK)
            with np.errstate(over="ignore"):  # of float64 models: infinity makes the step 0, which is right
                gap = np.subtract(a[block], b[block], dtype=np.float64)
                total += float(gap @ gap)
    return total


def log_terms(loss: float, distance: float, q: float, learning_rate: float) -> tuple[float, float]:
    """Return the logarithms of a client's two terms, a_k and b_k; minus infinity where one is 0.

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


class QFedAvg(VolunteerStrategy):
    """q-FFL's server. The models are summed in units of the largest a_k so far, so that no F_k^q overflows.

    Args:
        q: at least 0, at most a million.
        learning_rate: the clients' learning rate, 1 / L.
        shared: settings that all strategies share.

    Raises:
        ConfigError: for a setting that is not allowed.
    """

    def __init__(self, *, q: float, learning_rate: float, **shared: Unpack[Shared]) -> None:
        super().__init__(**shared)
        if not 0 <= q <= _LARGEST_Q:
            raise ConfigError(f"fairness-q = {q} is not allowed: at least 0, and at most {_LARGEST_Q:g}")
        if not 0 < learning_rate < math.inf:
            raise ConfigError(f"learning-rate = {learning_rate} is not allowed: more than 0")
        self.q = q
        self.learning_rate = learning_rate
        self._sent = ArrayRecord()
        self._log_unit = -math.inf
        self._log_curvature = -math.inf

    def train_settings(self) -> dict[str, Scalar]:
        """Ask each client for its loss."""
        return {keys.REPORT: keys.LOSS}

    def gather(self, arrays: ArrayRecord) -> None:
        """Begin to gather a round's joined replies."""
        super().gather(arrays)
        self._sent, self._log_unit, self._log_curvature = arrays, -math.inf, -math.inf

    def accept(self, member: Member, reply: TrainReply) -> None:
        """Take in one local model with its loss.

        Raises:
            Refused: for a loss below 0 or a model that does not fit.
        """
        assert self._fold is not None
        assert reply.arrays is not None
        loss = claim(reply.metrics, keys.LOSS, low=0.0)
        checked = self._fold.check(reply.arrays)
        distance = squared_distance(self._sent, reply.arrays) if self.q else 0.0
        log_a, log_b = log_terms(loss, distance, self.q, self.learning_rate)
        if log_a > self._log_unit:
            self._set_unit(log_a)
        self._fold.add_checked(checked, self._in_units(log_a))
        self._log_curvature = float(np.logaddexp(self._log_curvature, log_b))

    def _set_unit(self, log_unit: float) -> None:
        """Express the sum of models in a larger unit."""
        assert self._fold is not None
        if self._fold.count:
            rescaled = WeightedSum(self._sent)
            rescaled.merge(self._fold, math.exp(self._log_unit - log_unit))
            self._fold = rescaled
        self._log_unit = log_unit

    def _in_units(self, log_term: float) -> float:
        return 0.0 if self._log_unit == -math.inf else math.exp(min(_LARGEST, log_term - self._log_unit))

    def update(self, folded: WeightedSum) -> tuple[ArrayRecord, dict[str, float]]:
        """Return ``w - sum a_k (w - w_k) / sum (a_k + b_k)``; w where all losses are 0.

        The number for the history is the step: the share of the way to the weighted mean that was gone.
        """
        if folded.weight == 0:
            return folded.combine(keep=1.0, scale=0.0), {"step": 0.0}
        denominator = folded.weight + self._in_units(self._log_curvature)
        step = folded.weight / denominator
        return folded.combine(keep=1.0 - step, scale=1.0 / denominator), {"step": step}
