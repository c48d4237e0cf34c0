r"""ADA-GD, theorem 1: with the theorem's step no agent leaves, and the run ends with a loss of at most 4 epsilon.

Agent m has n random rows a in d unknowns, n M < d: one model w* makes all losses zero, and gradients are linearly
independent wherever they are not zero::

    F_m(w) = 1/n sum_a h(<a, w - w*>),   h(x) = x^2 / (2 delta) up to |x| = delta, then |x| - delta / 2
    L = max_m 1/n sum |a|,   H = max_m lambda_max(1/n sum a a^T) / delta

and the assumptions 1 to 4 hold with constants that are known.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import numpy as np

from fedappeal.protocol.draws import generator
from fedappeal.reproductions import bounds
from fedappeal.reproductions.adagd.toy import Floats, adagd, uniform
from strategies.adagd import theorem_step_size

WIDTH = 0.5
"""delta."""


@dataclass(frozen=True)
class Realizable:
    """Agents whose losses one model makes zero.

    Attributes:
        rows: shape ``(M, n, d)``.
        optimum: w*, shape ``(d,)``.
    """

    rows: Floats
    optimum: Floats

    def losses(self, w: Floats) -> Floats:
        """Return every F_m, shape ``(..., M)``, of models ``(..., d)``."""
        x = np.abs(np.einsum("mnd,...d->...mn", self.rows, w - self.optimum))
        return np.asarray(np.where(x <= WIDTH, x**2 / (2 * WIDTH), x - WIDTH / 2).mean(axis=-1))

    def gradients(self, w: Floats) -> Floats:
        """Return every gradient at one model, shape ``(M, d)``."""
        slopes = np.clip(self.rows @ (w - self.optimum) / WIDTH, -1.0, 1.0)
        return np.asarray(np.einsum("mn,mnd->md", slopes, self.rows) / self.rows.shape[1])

    @property
    def constants(self) -> tuple[float, float]:
        """L and H of every F_m."""
        spectrum = np.linalg.eigvalsh(np.einsum("mnd,mne->mde", self.rows, self.rows) / self.rows.shape[1])
        return float(np.linalg.norm(self.rows, axis=2).mean(axis=1).max()), float(spectrum.max() / WIDTH)


def draw_problem(agents: int, examples: int, size: int, precision: float, seed: int) -> tuple[Realizable, Floats]:
    """Return agents, and a start from which each has a loss above 5 epsilon."""
    rng = generator(seed, "adagd-theorem")
    problem = Realizable(rng.standard_normal((agents, examples, size)) / np.sqrt(size), rng.standard_normal(size))
    start = problem.optimum + rng.standard_normal(size)
    while (problem.losses(start) <= 5 * precision).any():
        start = problem.optimum + 1.5 * (start - problem.optimum)
    return problem, start


def compute(settings: Mapping[str, Any], seed: int) -> Mapping[str, Any]:
    """Return a row's final F and lost agents by epsilon, beside 4 epsilon."""
    agents, rounds, precisions = settings["agents"], settings["rounds"], settings["precisions"]
    ends, lost, alone, stopped = list[float](), list[int](), list[int](), list[bool]()
    for precision in precisions:
        problem, start = draw_problem(agents, settings["examples"], settings["size"], precision, seed)
        step = settings["factor"] * theorem_step_size(precision, *problem.constants, agents)
        path = adagd(problem, start, step, precision, rounds)
        ends.append(path.loss)
        lost.append(len(path.left))
        stopped.append(path.stopped)
        alone.append(len(uniform(problem, start, [step] * rounds, precision).left))
    means = {"lost": fmean(lost), "alone": fmean(alone), "stopped": fmean(stopped)}
    return bounds.comparison(precisions, ends, [4 * p for p in precisions], **means)
