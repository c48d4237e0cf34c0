r"""MaxFL's toy example: clients that estimate a mean (Cho et al., appendix A.1, Lemma A.1, Theorem A.1, appendix C).

Client k's true loss is ``f_k(w) = (w - theta_k)^2``. It knows only the mean of its samples,
``estimate_k ~ N(theta_k, gamma^2)`` with ``gamma^2 = nu^2 / N``, so that::

    F_k(w) - rho_k = (w - estimate_k)^2             rho_k = F_k(estimate_k) = (estimate_k - theta_k)^2
    the model w appeals to client k  <=>  f_k(w) < rho_k                       (Definition 1)

FedAvg's solution is the mean of the estimates. MaxFL's is a local minimum of ``1/M sum_k sigmoid(F_k(w) - rho_k)``
(equation 3), found with MaxFL's own round: each client returns its local minimum, ``delta_k = estimate_k - w``
(appendix C), and the server moves by equation 6. In place of the sigmoid another function h can stand: then a
client's weight is ``h'(F_k - rho_k)``.

`fedappeal reproduce maxfl-figure4` and ``maxfl-figure5`` run it.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord
from numpy.typing import NDArray

from fedappeal.core.requirement import Evaluation, Measured
from fedappeal.protocol.draws import generator
from fedappeal.protocol.keys import Decision
from fedappeal.protocol.packing import view
from strategies.maxfl import appeal_weight
from strategies.rounds.exchange.members import Member
from strategies.rounds.round import KEEP_MODEL, Reply
from strategies.rounds.strategy import Strategy, rounds_of

Floats = NDArray[np.float64]
Slope = Callable[[Floats], Floats]
"""h': the weight of a client whose gap F_k - rho_k is given, elementwise."""

STABILIZER = 1e-3
"""MaxFL's epsilon, as in a run; at a local minimum found from a client's own model it does not matter."""

_appeal_weights = np.frompyfunc(appeal_weight, 2, 1)


def sigmoid_slope(gaps: Floats) -> Floats:
    """MaxFL's weights q_k, by the strategy's own function."""
    return np.asarray(_appeal_weights(gaps, 0.0), dtype=np.float64)


def relu_slope(gaps: Floats) -> Floats:
    """Return the weights with ReLU for the sigmoid: 1.

    No gap of this example is below 0.
    """
    return (gaps >= 0).astype(np.float64)


def log_loss_slope(gaps: Floats) -> Floats:
    """Return the weights with log loss for the sigmoid: its derivative.

    ``log(1 + exp(x))``, of lemma A.2's kind.
    """
    return np.asarray(1.0 / (1.0 + np.exp(-gaps)))


def objective(w: Floats, estimates: Floats) -> Floats:
    """MaxFL's objective, equation 3, for models of any shape, of clients with ``estimates`` ``(M,)``."""
    gaps = (np.asarray(w)[..., None] - estimates) ** 2
    return np.asarray((1.0 / (1.0 + np.exp(-gaps))).mean(axis=-1))


@dataclass(frozen=True)
class Solution:
    """One model for each draw, written as ``estimate of a client + offset``.

    Far from all other clients MaxFL's solution lies so close to one client's estimate (1e-30) that their sum as a
    float64 is the estimate, and whether ``f_k(w) < rho_k`` is lost.

    Attributes:
        near: the client, shape ``(draws,)``.
        offset: the model less that client's estimate, shape ``(draws,)``.
    """

    near: NDArray[np.int64]
    offset: Floats

    def less(self, estimates: Floats) -> Floats:
        """Return ``w - estimate_k``; both ``(draws, M)``."""
        return np.asarray(self.offset[:, None] + (_pick(estimates, self.near)[:, None] - estimates))

    def models(self, estimates: Floats) -> Floats:
        """Return w, shape ``(draws,)``."""
        return np.asarray(_pick(estimates, self.near) + self.offset)


def _pick(estimates: Floats, client: NDArray[np.int64]) -> Floats:
    return np.asarray(np.take_along_axis(estimates, client[:, None], axis=1)[:, 0])


def draw_estimates(means: Sequence[float], gamma: float, draws: int, seed: int) -> Floats:
    """Return the clients' drawn estimates, shape ``(draws, M)``.

    Equal noise for all means, so that curves are smooth.
    """
    noise = generator(seed, "mean-estimation").standard_normal((draws, len(means)))
    return np.asarray(np.asarray(means, dtype=np.float64) + gamma * noise)


def fedavg(estimates: Floats) -> Solution:
    """FedAvg's solution: the mean of the clients' estimates."""
    near = np.zeros(len(estimates), dtype=np.int64)
    return Solution(near, np.asarray((estimates - estimates[:, :1]).mean(axis=1)))


def minimise(
    estimates: Floats, start: NDArray[np.int64], slope: Slope = sigmoid_slope, rounds: int = 1000, rtol: float = 1e-9
) -> Solution:
    """Return the models at which MaxFL's round, repeated, stays.

    Args:
        estimates: shape ``(draws, M)``.
        start: the client from whose estimate each draw starts, shape ``(draws,)``.
        slope: h'.
        rounds: the most rounds.
        rtol: a draw is done when its offset changes by less than this, relatively.
    """
    pulls = estimates - _pick(estimates, start)[:, None]  # the other estimates, as seen from where the draw starts
    offset, active = np.zeros(len(estimates)), np.arange(len(estimates))
    for _ in range(rounds):
        pull, old = pulls[active], offset[active]
        q = slope((old[:, None] - pull) ** 2)
        step = 1.0 / (q.sum(axis=1) + STABILIZER)
        new = (1.0 - step * q.sum(axis=1)) * old + step * (q * pull).sum(axis=1)
        offset[active] = new
        active = active[np.abs(new - old) > rtol * np.abs(new)]
        if not active.size:
            break
    return Solution(start, offset)


def lowest(estimates: Floats) -> Solution:
    """MaxFL's optimal solution: of the minima found from each client's estimate, the lowest."""
    minima = [minimise(estimates, np.full(len(estimates), k)) for k in range(estimates.shape[1])]
    values = [(1.0 / (1.0 + np.exp(-(s.less(estimates) ** 2)))).mean(axis=1) for s in minima]
    best = np.argmin(values, axis=0).astype(np.int64)
    return Solution(best, np.choose(best, [s.offset for s in minima]))


def appealing(solution: Solution, estimates: Floats, means: Sequence[float]) -> NDArray[np.bool_]:
    """Whether each model appeals to each client, ``f_k(w) < rho_k``, shape ``(draws, M)``.

    ``(w - theta)^2 - (estimate - theta)^2 = d (d + 2 (estimate - theta))`` with ``d = w - estimate``.
    """
    d = solution.less(estimates)
    return np.asarray(d * (d + 2.0 * (estimates - np.asarray(means))) < 0)


def lemma_a1(gap: float, gamma: float = 1.0) -> float:
    """Return lemma A.1's bound on FedAvg's GM-Appeal, ``2 exp(-gap^2 / (5 gamma^2))``.

    Expected, among two clients.

    Args:
        gap: gamma_G, half the distance of the true means.
        gamma: standard deviation of an estimate.
    """
    return 2.0 * math.exp(-(gap**2) / (5.0 * gamma**2))


def theorem_a1(gamma: float = 1.0) -> float:
    """Return theorem A.1's least GM-Appeal, ``exp(-1 / gamma^2) / 16``.

    At a local minimum of MaxFL's objective.
    """
    return math.exp(-1.0 / gamma**2) / 16.0


def federated_models(strategy: Strategy, estimates: Sequence[float], start: float, rounds: int) -> list[float]:
    """Return the models of a strategy's own rounds, the start first; one draw, float64.

    Each client joins every round and returns its local minimum, with the strategy's own report and one example.
    """
    models, its_rounds = [start], rounds_of(strategy)
    for number in range(1, rounds + 1):
        w = models[-1]
        this_round = its_rounds.begin(its_rounds.new_round(number, _record(w))).round
        for k, estimate in enumerate(estimates):
            loss = (w - estimate) ** 2  # less rho_k, which is the same for every model: as if rho_k were 0
            claims = strategy.report(Measured(Evaluation(loss, math.nan), rho=0.0, met=loss < 0))
            strategy.add(this_round, Reply(Member(str(k), k), Decision.JOINED, 1, claims, _record(estimate)))
        new = strategy.finish(this_round)
        models.append(w if new is KEEP_MODEL else float(view(new["w"])[0]))
    return models


def _record(w: float) -> ArrayRecord:
    return ArrayRecord({"w": Array(np.array([w], dtype=np.float64))})


# -- measuring -------------------------------------------------------------------------------------------

HETEROGENEITY = (0.0, 0.25, 0.5, 1.0, 1.5, *(float(n) for n in range(2, 21)))
"""gamma_G^2, the squared half distance of two clients' true means: appendix C's range."""


_SLOPES: Mapping[str, Slope] = {"relu": relu_slope, "log": log_loss_slope, "maxfl": sigmoid_slope}


def two_clients(settings: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """Return figure 4(a)'s curve for one row and seed: GM-Appeal at each value of `HETEROGENEITY`.

    Args:
        settings: ``objective``: ``fedavg``, ``relu`` or ``log`` (MaxFL with ReLU or the log loss in place of the
            sigmoid) or ``maxfl``; all but the first start from the estimate of a client drawn at random. ``draws`` of
            the clients' data. ``gamma``: standard deviation of an estimate.
        seed: of the draws; they are the same for all objectives.

    Returns:
        With it ``from_average``, the largest distance of a solution from the average of the estimates.
    """
    draws, objective = settings["draws"], settings["objective"]
    appeals, farthest = [], 0.0
    for squared in HETEROGENEITY:
        means = (0.0, 2.0 * squared**0.5)
        estimates = draw_estimates(means, settings["gamma"], draws, seed)
        start = generator(seed, "mean-estimation-start").integers(0, 2, draws)
        solution = fedavg(estimates) if objective == "fedavg" else minimise(estimates, start, _SLOPES[objective])
        appeals.append(float(appealing(solution, estimates, means).mean()))
        farthest = max(farthest, float(distance(solution, estimates, [[0, 1]]).max()))
    return {"heterogeneity": list(HETEROGENEITY), "gm_appeal": appeals, "from_average": farthest}


def distance(solution: Solution, estimates: Floats, averages: Sequence[Sequence[int]]) -> Floats:
    """Return each model's distance to the nearest average of estimates, shape ``(draws,)``.

    Args:
        solution: the models.
        estimates: shape ``(draws, M)``.
        averages: the clients of each average; ``[[0], [1]]``: of the first two, the nearer one's own estimate.
    """
    less = solution.less(estimates)
    return np.asarray(np.min([np.abs(less[:, list(clients)].mean(axis=1)) for clients in averages], axis=0))


SAME = 0.05
"""Solutions that are no farther apart than this, in standard deviations of an estimate, are called the same."""


def three_clients(settings: Mapping[str, Any], seed: int) -> dict[str, float]:
    """Return how many clients figure 5's best solution satisfies, as shares of draws.

    Over many draws.

    Args:
        settings: ``objective``: ``fedavg`` or ``maxfl``. ``means``: the clients' true means. ``averages``: what the
            paper says that MaxFL's solution is, one of these averages (see `distance`). ``draws`` of the clients'
            data. ``gamma``: standard deviation of an estimate.
        seed: of the draws; they are the same for both.

    Returns:
        ``gm_appeal``: clients that are satisfied. ``at_least_one``: draws in which at least one client is. ``pair``:
        draws in which clients 1 and 2 both are. ``as_said``: draws whose solution is, within `SAME`, the paper's.
    """
    means, gamma = settings["means"], settings["gamma"]
    estimates = draw_estimates(means, gamma, settings["draws"], seed)
    solution = fedavg(estimates) if settings["objective"] == "fedavg" else lowest(estimates)
    pleased = appealing(solution, estimates, means)
    return {
        "gm_appeal": float(pleased.mean()),
        "at_least_one": float(pleased.any(axis=1).mean()),
        "pair": float(pleased[:, :2].all(axis=1).mean()),
        "as_said": float((distance(solution, estimates, settings["averages"]) <= SAME * gamma).mean()),
    }
