r"""TERM: a tilted average of the clients' losses, between their mean and their worst.

Li, Beirami, Sanjabi, Smith: "Tilted Empirical Risk Minimization". ICLR 2021. The objective is, over m clients::

    R_t(w) = 1/t log( 1/m sum_k exp(t F_k(w)) )

t towards 0 is the mean of the losses, a large t approaches the worst client's, a negative t counts clients with large
losses less. Its gradient is the mean of the clients' gradients weighted by exp(t (F_k - R_t)).

Written after the authors' program for federated learning (github.com/litian96/TERM, `fair_flearn/.../tilting.py`),
which keeps an estimate E of ``exp(t R_t)`` over the rounds, because a round sees some clients only. With w_k the
model that client k trained from w, over the m clients that joined::

    E <- (1 - share) E + share (1/m) sum_k exp(t F_k)
    w <- w + eta (1/m) sum_k exp(t F_k) / E (w_k - w)

F_k is the training loss of the model that was sent. share is 1/2 there. Three things differ from the program:

- It divides by m once more. That is a learning rate 1/m as long; here t = 0 is unweighted FedAvg.
- It starts with E = 0, which makes the first step twice as long. Here the first round's own mean is E.
- It takes E and exp(t F_k) in units of each round's largest exp(t F_k), so that E mixes units. Here all is absolute,
  and kept as logarithms.

A step is at most eta / share times the way to the weighted mean. A round without a joiner leaves w and E as they are.
"""

import math
from collections.abc import Mapping
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from fedappeal.core.requirement import Measured
from fedappeal.protocol import keys
from fedappeal.settings.config import Positive
from strategies.rounds.algorithm import Influence
from strategies.rounds.round import KEEP_MODEL, Kept, Model, Reply, Round, log
from strategies.rounds.strategy import Claims, Strategy, StrategySettings
from strategies.rounds.sums.weighted_sum import LogWeightedSum

_ESTIMATE = "estimate"
_LARGEST_TILT = 1e6
_LARGEST = 1e300
"""Bound on ``t F_k``: differences of two such numbers are finite."""


def log_tilt(loss: float, tilt: float) -> float:
    """Return ``t F_k``, the logarithm of a client's weight."""
    return min(_LARGEST, max(-_LARGEST, tilt * loss))


class TiltedInfluence(Influence):
    """Clients are compared by exp(t F_k)."""

    def log_weight(self, round: Round, reply: Reply) -> float:
        """Return ``t F_k``."""
        return log_tilt(reply.claim(keys.LOSS, low=0.0), self.settings.tilt)


class TERM(Strategy):
    """TERM (Li et al., ICLR 2021): a tilted average of the clients' losses, between mean and worst."""

    name = "term"
    refuses_batch_norm = True
    needs_losses = True
    influence = TiltedInfluence
    still_open = (
        "a client that claims a large loss (with a negative tilt: a small one) outweighs the others, up to its "
        "bounded share of a round; it makes the steps of later rounds shorter"
    )

    class Settings(StrategySettings):
        """TERM's settings."""

        tilt: Annotated[float, Field(ge=-_LARGEST_TILT, le=_LARGEST_TILT)] = 0.1
        """t: above 0 clients with large losses count more, below 0 less; 0 is unweighted FedAvg"""
        share: Annotated[float, Field(gt=0, le=1)] = 0.5
        """how much of the estimate of exp(t R_t) is the latest round's"""
        server_lr: Positive = 1.0
        """eta, the server's learning rate"""

    settings: Settings

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.log_estimate: float | None = None
        """log E = t R_t; None before the first round with a joiner."""

    def report(self, measured: Measured) -> Claims:
        """Return F_k of the model that was sent."""
        return {keys.LOSS: measured.loss}

    def begin(self, round: Round) -> None:
        """Begin with nothing."""
        round.carry = LogWeightedSum(round.model)

    def add(self, round: Round, reply: Reply) -> None:
        """Take in one local model with its loss.

        Raises:
            Refused: for a loss below 0 or a model that does not fit.
        """
        gathered: LogWeightedSum = round.carry
        log_weight = log_tilt(reply.claim(keys.LOSS, low=0.0), self.settings.tilt) + log(reply.counts)
        gathered.add_checked(gathered.sum.check(reply.arrays), log_weight)

    def finish(self, round: Round) -> Model | Kept:
        """Return ``w + eta (1/m) sum exp(t F_k) / E (w_k - w)``, and move E.

        Numbers for the history: the step, as the share of the way to the weighted mean, and R_t as it is estimated.
        """
        gathered: LogWeightedSum = round.carry
        if not gathered.sum.count or gathered.sum.weight == 0:
            return KEEP_MODEL
        log_mean = gathered.log_unit + math.log(gathered.sum.weight / gathered.sum.count)
        share, before = self.settings.share, self.log_estimate
        estimate = log_mean
        if before is not None and share < 1:
            estimate = float(np.logaddexp(math.log1p(-share) + before, math.log(share) + log_mean))
        self.log_estimate = estimate
        round.metrics["step"] = step = self.settings.server_lr * math.exp(log_mean - estimate)
        if self.settings.tilt:
            round.metrics["tilted_loss"] = estimate / self.settings.tilt
        return gathered.sum.combine(keep=1.0 - step, scale=step / gathered.sum.weight)

    def carried(self) -> dict[str, Any]:
        """Return the logarithm of E."""
        return {_ESTIMATE: {} if self.log_estimate is None else {"log": self.log_estimate}}

    def take_up(self, carried: Mapping[str, Mapping[str, Any]]) -> None:
        """Take up the logarithm of E."""
        values = carried.get(_ESTIMATE, {})
        self.log_estimate = float(values["log"]) if values else None
