"""FedALIGN's mathematics: alignment with the priority clients, weights, one round's sum, and the clients' policy.

"Prioritized Federated Learning: Leveraging Non-Priority Clients for Targeted Model Improvement". Anonymous
authors, under double-blind review. Equation numbers are the paper's; P is the set of priority clients.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median_low
from typing import Any, NamedTuple

import numpy as np

from fedappeal.core.policy import Policy, Situation
from fedappeal.core.requirement import Evaluation
from fedappeal.protocol.keys import Decision
from fedappeal.settings.config import ConfigError, Scalar
from fedappeal.settings.rounds import share_of_rounds
from strategies.rounds.round import Model
from strategies.rounds.sums.influence import capped_values
from strategies.rounds.sums.weighted_sum import WeightedSum

EPSILON = "epsilon-now"
"""Key in TRAIN: epsilon_t."""
GLOBAL_LOSS = "global-loss-now"
"""Key in TRAIN: F(w) of the model that is sent, as ``match-on`` says."""
MATCH_ON = "match-on"


def joins(local_loss: float, global_loss: float, epsilon: float) -> bool:
    """Whether a non-priority client trains: ``F_k(w) <= F(w) + epsilon`` (Algorithm 1, the client's side)."""
    return local_loss <= global_loss + epsilon


def accepts(local_loss: float, global_loss: float, epsilon: float) -> bool:
    """Whether the server takes its update: ``F_k(w) >= F(w) - epsilon`` (Algorithm 1, the server's side)."""
    return local_loss >= global_loss - epsilon


def priority_loss(losses: Sequence[float], examples: Sequence[int]) -> float:
    """F(w) of equation 5, ``sum_{k in P} p_k F_k(w)``: the priority clients' losses, weighted by their data.

    Args:
        losses: F_k(w), shape ``(P,)``, at least one.
        examples: D_k, shape ``(P,)``, each at least 1.
    """
    counts = np.asarray(examples, dtype=np.float64)
    return float(np.dot(counts / counts.sum(), np.asarray(losses, dtype=np.float64)))


def data_fraction(examples: float, priority_examples: float, most: float | None = None) -> float:
    """Aggregation weight p_k (below equation 5): ``D_k / sum_{i in P} D_i``; may exceed 1 outside of P.

    Args:
        examples: D_k.
        priority_examples: data of all priority clients, above 0.
        most: limit of the result; None: no limit, as in the paper.
    """
    return min(examples / priority_examples, math.inf if most is None else most)


def theta(accepted: float) -> float:
    """Summand of theta_T (equation 7) for one round: ``1 / (1 + sum p_k I_k)``.

    Args:
        accepted: ``sum p_k I_k`` over the clients outside of P, at least 0.

    Returns:
        In (0, 1]: 1 where none was accepted, less the more were.
    """
    return 1.0 / (1.0 + accepted)


def rho(accepted: float, gap: float = 1.0) -> float:
    """Summand of rho_T (equation 8) for one round: ``sum p_k I_k Gamma_k / (1 + sum p_k I_k)``.

    Args:
        accepted: ``sum p_k I_k`` over the clients outside of P, at least 0.
        gap: ``Gamma_k = F_k(w*) - F_k*``, the same for all; these minima are not known during a run. With 1 the
            result is the share that non-priority clients have in the new model, ``1 - theta``.
    """
    return gap * accepted / (1.0 + accepted)


def epsilon_schedule(kind: str, epsilon: float, rounds: int, decay: float, drop: float) -> Callable[[int], float]:
    """Return epsilon_t as a function of the round, from 1 (Corollary 2).

    Args:
        kind: ``constant``; ``linear``: from epsilon in round 1 to 0 in the last of several; ``exponential``:
            ``epsilon * decay^(t-1)``; ``step``: epsilon in the first ``drop`` share of the rounds, then 0.
        epsilon: of the first round.
        rounds: rounds of the run, at least 1.
        decay: factor a round, in (0, 1].
        drop: in [0, 1].

    Raises:
        ConfigError: for another kind.
    """
    last = max(2, rounds)  # the only round of a run is its first
    schedules: dict[str, Callable[[int], float]] = {
        "constant": lambda t: epsilon,
        "linear": lambda t: epsilon * (max(0, last - t) / (last - 1)),
        "exponential": lambda t: epsilon * decay ** (t - 1),
        "step": lambda t: epsilon if t <= share_of_rounds(drop, rounds) else 0.0,
    }
    if kind not in schedules:
        raise ConfigError(f"epsilon-schedule = '{kind}' is not allowed: {', '.join(schedules)}")
    return schedules[kind]


class Statement(NamedTuple):
    """A client's claims: F_k (or the metric's error), and D_k."""

    loss: float
    examples: int


def loss_of(claims: Sequence[Statement]) -> float | None:
    """Return F(w) of what the priority clients say.

    None where none says anything.
    """
    ordered = sorted(claims)  # who answers first must not decide a comparison, not even by a rounding
    return priority_loss([c.loss for c in ordered], [c.examples for c in ordered]) if claims else None


def without_outliers(claims: Sequence[Statement], factor: float) -> list[Statement]:
    """Return statements, each loss and number of examples near the cohort's lower medians.

    Args:
        claims: what clients say.
        factor: examples: at most this many times the median; a loss: at most that far from its median, as a multiple
            of the median's size.
    """
    if not claims:
        return []
    middle = median_low(one.loss for one in claims)
    low, high = sorted((middle - (factor - 1) * abs(middle), middle + (factor - 1) * abs(middle)))
    examples = capped_values([one.examples for one in claims], factor)
    return [Statement(min(high, max(low, one.loss)), int(count)) for one, count in zip(claims, examples, strict=True)]


def aligned(loss: float, global_loss: float, epsilon: float) -> bool:
    """Whether a client should have joined and the server should take its update."""
    return joins(loss, global_loss, epsilon) and accepts(loss, global_loss, epsilon)


@dataclass
class AlignedSum:
    """One round of Algorithm 1: the updates, added up as they come.

    Attributes:
        total: ``sum D_k w_k`` of the updates taken in.
        limited: ``sum p_k w_k`` of the accepted ones, where p_k has a limit.
        epsilon: epsilon_t.
        warming: whether only priority clients count.
        most: limit of a non-priority client's p_k; None: no limit.
        outlier: how far one priority client's loss and data may be from the others'; None: any distance.
        told: the F(w) that clients were told; None: none.
        expected: data of the priority clients that were asked; 0: not known.
        surveyed: what the priority clients say of the model before any client trains.
        answers: the same as they answered: loss, metrics and examples, by key.
        priority: what the priority clients say that joined.
        accepted: non-priority clients whose updates are taken in; ``refused``: those whose updates are not.
        held: non-priority clients' models that wait for the end of the round.
    """

    total: WeightedSum
    limited: WeightedSum
    epsilon: float
    warming: bool
    most: float | None
    outlier: float | None = None
    told: float | None = None
    expected: int = 0
    surveyed: list[Statement] = field(default_factory=list)
    answers: list[Mapping[str, Any]] = field(default_factory=list)
    priority: list[Statement] = field(default_factory=list)
    accepted: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    held: list[tuple[str, Model, Statement]] = field(default_factory=list)

    def loss_of(self, claims: Sequence[Statement]) -> float | None:
        """Return F(w) of what the priority clients say.

        It is bounded where influence is. None where they say nothing.
        """
        return loss_of(claims if self.outlier is None else without_outliers(claims, self.outlier))

    def add_priority(self, arrays: Model, claim: Statement) -> None:
        """Take in a priority client's update.

        Raises:
            Refused: if the model does not fit; nothing is changed.
        """
        self.total.add(arrays, claim.examples)
        self.priority.append(claim)

    def add_other(self, client: str, arrays: Model, claim: Statement) -> None:
        """Match another client's update: add it, hold it or refuse it.

        Raises:
            Refused: if a model that would count does not fit; nothing is changed.
        """
        if self.warming or (self.told is not None and not aligned(claim.loss, self.told, self.epsilon)):
            self.refused.append(client)
        elif self.told is None or (self.most is not None and not self.expected):
            self.total.add(arrays, 0.0)  # a model that does not fit is to be found now, not at the end
            self.held.append((client, arrays, claim))
        else:
            if self.most is None:
                self.total.add(arrays, claim.examples)
            else:
                self.limited.add(arrays, data_fraction(claim.examples, self.expected, self.most))
            self.accepted.append(client)

    def close(self) -> tuple[Model | None, float]:
        """Return the next model, or None, and ``sum p_k`` over accepted others.

        After it, every other client is among the accepted or the refused.
        """
        examples = sum(claim.examples for claim in self.priority)
        global_loss = self.loss_of(self.priority) if self.told is None else self.told
        for client, arrays, claim in self.held:
            if examples and global_loss is not None and aligned(claim.loss, global_loss, self.epsilon):
                self.total.add(arrays, examples * data_fraction(claim.examples, examples, self.most))
                self.accepted.append(client)
            else:
                self.refused.append(client)
        self.held.clear()
        if not examples:
            self.refused += self.accepted
            self.accepted.clear()
            return None, 0.0
        self.total.merge(self.limited, factor=examples)
        return self.total.combine(keep=0.0, scale=1.0 / self.total.weight), self.total.weight / examples - 1.0


def matched(evaluation: Evaluation, told: Mapping[str, Scalar]) -> float:
    """Return what ``match-on`` compares: the loss, or the metric's error ``1 - accuracy`` (section 3.1)."""
    return evaluation.error if told.get(MATCH_ON) == "error" else evaluation.loss


class Match(Policy):
    """Join with priority, or while ``F_k(w) <= F(w) + epsilon``; without a known F(w), join."""

    name = "match"

    def decide(self, situation: Situation) -> Decision:
        """Return that the client joins where it has priority or the model suits it."""
        values = situation.told
        if situation.priority or GLOBAL_LOSS not in values:
            return Decision.JOINED
        suits = joins(matched(situation.evaluation, values), float(values[GLOBAL_LOSS]), float(values[EPSILON]))
        return Decision.JOINED if suits else Decision.SAT_OUT
