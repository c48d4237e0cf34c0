r"""MaxFL's toy example: clients that estimate a mean (Cho et al., appendix A.1, Lemma A.1, Theorem A.1, appendix C).

Client k's true loss is ``f_k(w) = (w - theta_k)^2``. It knows only the mean of its samples,
``estimate_k ~ N(theta_k, gamma^2)`` with ``gamma^2 = nu^2 / N``, so that::

    F_k(w) - rho_k = (w - estimate_k)^2             rho_k = F_k(estimate_k) = (estimate_k - theta_k)^2
    the model w appeals to client k  <=>  f_k(w) < rho_k                       (Definition 1)

FedAvg's solution is the mean of the estimates. MaxFL's is a local minimum of ``1/M sum_k sigmoid(F_k(w) - rho_k)``
(equation 3), found with MaxFL's own round: each client returns its local minimum, ``delta_k = estimate_k - w``
(appendix C), and the server moves by equation 6. In place of the sigmoid another function h can stand: then a
client's weight is ``h'(F_k - rho_k)``.

Run as ``python -m fedappeal.experiments.mean_estimation --out FOLDER [--seeds N]``; the picture is made in
`fedappeal.experiments.mean_estimation_plot`.
"""

import argparse
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, MetricRecord
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from fedappeal.protocol import keys
from fedappeal.protocol.draws import generator
from fedappeal.protocol.keys import Decision
from fedappeal.protocol.packing import view
from strategies.maxfl import appeal_weight
from strategies.members import Member
from strategies.replies import TrainReply
from strategies.volunteers import VolunteerStrategy

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
    """Weights with ReLU in place of the sigmoid: 1, because no gap of this example is below 0."""
    return (gaps >= 0).astype(np.float64)


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
        return np.asarray(self.offset[:, None] + (_taken(estimates, self.near)[:, None] - estimates))

    def models(self, estimates: Floats) -> Floats:
        """Return w, shape ``(draws,)``."""
        return np.asarray(_taken(estimates, self.near) + self.offset)


def _taken(estimates: Floats, client: NDArray[np.int64]) -> Floats:
    return np.asarray(np.take_along_axis(estimates, client[:, None], axis=1)[:, 0])


def draw_estimates(means: Sequence[float], gamma: float, draws: int, seed: int) -> Floats:
    """Draw the clients' estimates, shape ``(draws, M)``; equal noise for all means, so that curves are smooth."""
    noise = generator(seed, "mean-estimation").standard_normal((draws, len(means)))
    return np.asarray(np.asarray(means, dtype=np.float64) + gamma * noise)


def fedavg(estimates: Floats) -> Solution:
    """FedAvg's solution: the mean of the clients' estimates."""
    near = np.zeros(len(estimates), dtype=np.int64)
    return Solution(near, np.asarray((estimates - estimates[:, :1]).mean(axis=1)))


def minimise(
    estimates: Floats, start: NDArray[np.int64], slope: Slope = sigmoid_slope, rounds: int = 1000, rtol: float = 1e-9
) -> Solution:
    """Repeat MaxFL's round until the model stays.

    Args:
        estimates: shape ``(draws, M)``.
        start: the client from whose estimate each draw starts, shape ``(draws,)``.
        slope: h'.
        rounds: at most so many.
        rtol: a draw is done when its offset changes by less than this, relatively.
    """
    pulls = estimates - _taken(estimates, start)[:, None]  # the other estimates, as seen from where the draw starts
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


def lowest(estimates: Floats, slope: Slope = sigmoid_slope) -> Solution:
    """MaxFL's optimal solution: of the minima found from each client's estimate, the lowest."""
    found = [minimise(estimates, np.full(len(estimates), k), slope) for k in range(estimates.shape[1])]
    values = [(1.0 / (1.0 + np.exp(-(s.less(estimates) ** 2)))).mean(axis=1) for s in found]
    best = np.argmin(values, axis=0).astype(np.int64)
    return Solution(best, np.choose(best, [s.offset for s in found]))


def appealing(solution: Solution, estimates: Floats, means: Sequence[float]) -> NDArray[np.bool_]:
    """Whether each model appeals to each client, ``f_k(w) < rho_k``, shape ``(draws, M)``.

    ``(w - theta)^2 - (estimate - theta)^2 = d (d + 2 (estimate - theta))`` with ``d = w - estimate``.
    """
    d = solution.less(estimates)
    return np.asarray(d * (d + 2.0 * (estimates - np.asarray(means))) < 0)


def lemma_a1(gap: float, gamma: float = 1.0) -> float:
    """Lemma A.1: FedAvg's expected GM-Appeal among two clients is at most ``2 exp(-gap^2 / (5 gamma^2))``.

    Args:
        gap: gamma_G, half the distance of the true means.
        gamma: standard deviation of an estimate.
    """
    return 2.0 * math.exp(-(gap**2) / (5.0 * gamma**2))


def theorem_a1(gamma: float = 1.0) -> float:
    """Theorem A.1: at a local minimum of MaxFL's objective it is at least ``exp(-1 / gamma^2) / 16``."""
    return math.exp(-1.0 / gamma**2) / 16.0


def federated(strategy: VolunteerStrategy, estimates: Sequence[float], start: float, rounds: int) -> list[float]:
    """Return the models that a strategy itself goes through, the start first; one draw, float64.

    Each client joins every round and returns its local minimum, with its appeal weight and one example.
    """
    models = [start]
    for _ in range(rounds):
        w = models[-1]
        strategy.gather(ArrayRecord({"w": Array(np.array([w]))}))
        for k, estimate in enumerate(estimates):
            told = MetricRecord({keys.APPEAL_WEIGHT: appeal_weight((w - estimate) ** 2, 0.0)})
            local = ArrayRecord({"w": Array(np.array([estimate], dtype=np.float64))})
            strategy.accept(Member(str(k), k), TrainReply(Decision.JOINED, 1, told, local))
        new, _ = strategy.conclude()
        models.append(w if new is None else float(view(new["w"])[0]))
    return models


# -- measuring -------------------------------------------------------------------------------------------

HETEROGENEITY = (0.0, 0.25, 0.5, 1.0, 1.5, *(float(n) for n in range(2, 21)))
"""gamma_G^2, the squared half distance of two clients' true means: appendix C's range."""

CASES = {
    "1: all alike": (-0.1, 0.0, 0.1),
    "2: all different": (0.0, 8.0, 24.0),
    "3: two alike": (-0.1, 0.1, 12.0),
}
"""Appendix A.1's three cases of three clients, as true means; the paper gives no numbers."""

Row = dict[str, Any]


def two_clients(seeds: int, draws: int, gamma: float = 1.0) -> list[Row]:
    """Figure 4(a): GM-Appeal of each objective's solution as heterogeneity grows; means and deviations over seeds."""
    rows = []
    for squared in HETEROGENEITY:
        means = (0.0, 2.0 * squared**0.5)
        found: dict[str, list[float]] = {"fedavg": [], "relu": [], "maxfl": []}
        for seed in range(seeds):
            estimates = draw_estimates(means, gamma, draws, seed)
            start = generator(seed, "mean-estimation-start").integers(0, 2, draws)
            solutions = {
                "fedavg": fedavg(estimates),
                "relu": minimise(estimates, start, relu_slope),
                "maxfl": minimise(estimates, start),
            }
            for name, solution in solutions.items():
                found[name].append(float(appealing(solution, estimates, means).mean()))
        rows.append(
            {"heterogeneity": squared}
            | {name: float(np.mean(values)) for name, values in found.items()}
            | {f"{name}_deviation": float(np.std(values)) for name, values in found.items()}
            | {"lemma_a1": lemma_a1(squared**0.5, gamma), "theorem_a1": theorem_a1(gamma)}
        )
    return rows


def three_clients(seeds: int, draws: int, gamma: float = 1.0) -> list[Row]:
    """Figure 5's cases over many draws: GM-Appeal, and the share of draws in which it is not 0."""
    rows = []
    for case, means in CASES.items():
        estimates = np.concatenate([draw_estimates(means, gamma, draws, seed) for seed in range(seeds)])
        row: Row = {"case": case, "means": means}
        for name, solution in (("fedavg", fedavg(estimates)), ("maxfl", lowest(estimates))):
            pleased = appealing(solution, estimates, means)
            row |= {name: float(pleased.mean()), f"{name}_somebody": float(pleased.any(axis=1).mean())}
        rows.append(row)
    return rows


# -- the command -----------------------------------------------------------------------------------------


def _tables(two: list[Row], three: list[Row]) -> list[Table]:
    first = Table(title="Two clients: expected GM-Appeal (figure 4a)")
    for name in ("gamma_G^2", "FedAvg", "at most\nLemma A.1", "MaxFL\nReLU", "MaxFL", "at least\nTheorem A.1"):
        first.add_column(name, justify="right")
    for row in two:
        first.add_row(
            f"{row['heterogeneity']:g}",
            f"{row['fedavg']:.4f}",
            f"{row['lemma_a1']:.4f}" if row["lemma_a1"] < 1 else "-",
            f"{row['relu']:.4f}",
            f"{row['maxfl']:.4f}",
            f"{row['theorem_a1']:.4f}",
        )
    second = Table(title="Three clients: expected GM-Appeal, and how often not 0 (figure 5)")
    for name in ("case", "true means", "FedAvg", "not 0", "MaxFL", "not 0"):
        second.add_column(name, justify="left" if name == "case" else "right")
    for row in three:
        numbers = [f"{row[key]:.3f}" for key in ("fedavg", "fedavg_somebody", "maxfl", "maxfl_somebody")]
        second.add_row(row["case"], ", ".join(f"{mean:g}" for mean in row["means"]), *numbers)
    return [first, second]


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print the tables, and write ``mean-estimation.json``, ``.png`` and ``.svg``."""
    parser = argparse.ArgumentParser(prog="python -m fedappeal.experiments.mean_estimation", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--out", type=Path, required=True, help="folder for the picture and the numbers")
    parser.add_argument("--seeds", type=int, default=3, help="repetitions (3)")
    parser.add_argument("--draws", type=int, default=10_000, help="draws of the clients' data a repetition (10000)")
    given = parser.parse_args(arguments)
    for name in ("seeds", "draws"):
        if (value := getattr(given, name)) < 1:
            parser.error(f"{name} = {value} is not allowed: at least 1")
    try:
        from fedappeal.experiments.mean_estimation_plot import picture
    except ImportError as error:
        parser.error(f"the picture needs matplotlib, which the extra `data` brings: {error}")

    two, three = two_clients(given.seeds, given.draws), three_clients(given.seeds, given.draws)
    console = Console()
    for table in _tables(two, three):
        console.print(table)
    given.out.mkdir(parents=True, exist_ok=True)
    path = given.out / "mean-estimation"
    settings = {"seeds": given.seeds, "draws": given.draws, "gamma": 1.0, "stabilizer": STABILIZER}
    found = {"settings": settings, "two_clients": two, "three_clients": three}
    path.with_suffix(".json").write_text(json.dumps(found, indent=1) + "\n")
    picture(two, path)
    console.print(f"wrote {path}.json, .png, .svg")


if __name__ == "__main__":
    main()
