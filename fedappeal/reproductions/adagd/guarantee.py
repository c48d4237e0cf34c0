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
from fedappeal.studies.experiment import Arm, Claim, Experiment, Quick, at_least, at_most
from fedappeal.views.comparison.measures import Measure, last
from strategies.adagd import theorem_step_size

PRECISIONS = (0.02, 0.05, 0.1, 0.2, 0.4)
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
    """Return a row's F at the end for each epsilon, beside 4 epsilon, and how many agents left."""
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


def _row(agents: int, examples: int, factor: float = 1.0) -> Arm:
    step = "" if factor == 1 else f", {factor:g} times the theorem's step"
    return Arm(f"{agents} agents{step}", {"agents": agents, "examples": examples, "factor": factor})


_ARMS = (_row(2, 10), _row(5, 5), _row(10, 3))

EXPERIMENTS = (
    Experiment(
        name="adagd-theorem1",
        title="ADA-GD: the loss at the end against the theorem's bound",
        source="ADA-GD, theorem 1",
        claim="With a step of at most min(epsilon / L, sqrt(epsilon / 2H), sqrt(2 / H), 1 / (M H)) no agent leaves, "
        "and the run ends with F at most 4 epsilon.",
        settings={"size": 40, "precisions": list(PRECISIONS), "rounds": 20_000},
        arms=(*_ARMS, _row(5, 5, 10.0)),
        measures=(
            Measure("lost", "agents that leave ADA-GD, mean over epsilon", last("lost"), better="lower", digits=1),
            Measure("alone", "that leave averaging, same step", last("alone"), better="lower", digits=1),
            Measure("stopped", "runs that end by themselves %", last("stopped"), True, digits=0),
            *bounds.columns("F", digits=3),
        ),
        quick=Quick({"precisions": [0.2, 0.4]}),
        claims=(
            *(bounds.below(arm, "F at the end is at most 4 epsilon for every epsilon") for arm in _ARMS),
            *(Claim(f"{arm.name}: no agent leaves", at_most(arm.name, "lost", 0.0), inclusive=True) for arm in _ARMS),
            *(
                Claim(f"{arm.name}: averaging loses agents", at_least(arm.name, "alone", 0.0), ours=True)
                for arm in _ARMS
            ),
            *(
                Claim(f"{arm.name}: every run ends by itself", at_least(arm.name, "stopped", 100), inclusive=True)
                for arm in _ARMS
            ),
        ),
        figure=bounds.drawing("epsilon", "F at the end"),
        notes=f"""\
- Agents of 10, 5 or 3 random rows each in 40 unknowns; losses are |x|, rounded off within {WIDTH:g}, so that all four
  assumptions hold with constants that are known. Each start has losses above 5 epsilon.
- Theorem 1 does not say how far F is below 4 epsilon. By Algorithm 1, line 4, with so small a step F ends near
  2 epsilon. The last row is beyond the theorem.
- Averaging is of all agents that are there, with the same step; an agent that leaves it is content.
""",
        compute=compute,
    ),
)
