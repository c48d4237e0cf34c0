r"""ADA-GD, figure 1, observation 1 and figure 6: when defections are benign, and when nothing helps.

An agent with points x in the plane, labelled y = -1 or 1, has ``F_m(w) = mean log(1 + exp(-y <x, w>))``. Only ``y x``
counts; on the circle, a separator w is right about what is within 90 degrees of it.

- Figure 1: ten points each. The agents' arcs overlap. The max-margin separator of each alone, its arc's middle, is
  wrong about the two outermost points of the other.
- Observation 1: agent 1 is uniform over the ball, agent 2 over the ends of one axis; ``1[x_1 <= 0]`` labels both. A
  ball that is symmetric in x_2 has ``F_1(w) >= F_2(w)`` wherever F_1 is below ln 2: a model good for 1 is good for 2.
- Figure 6: ``F_1(w) = max(|w_1| - 1/4, 0)``, and ``F_2(w) = max((w_1 - 3/2)^2 + w_2^2 / 4 - 2, 0) / 2``. At
  ``(-1/4, 0)`` both gradients are along the first axis: assumption 4 does not hold.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedappeal.protocol.draws import generator
from fedappeal.reproductions.adagd.contours import AGENT_1, AGENT_2, BLACK, PURPLE, draw_agents, draw_path, summary
from fedappeal.reproductions.adagd.toy import Floats, Trajectory, adagd, uniform
from fedappeal.studies.experiment import Results
from fedappeal.views.comparison.measures import Figure, new_figure

_COLOURS = (AGENT_1, AGENT_2)
_NAMES = {AGENT_1: "agent 1", AGENT_2: "agent 2", BLACK: "both"}


@dataclass(frozen=True)
class Separators:
    """Agents that learn a linear separator through the origin.

    Attributes:
        signed: each agent's points times their labels, shape ``(n_m, 2)``.
        factors: what each gradient counts in the aggregate.
    """

    signed: tuple[Floats, ...]
    factors: tuple[float, ...] = (1.0, 1.0)

    def losses(self, w: Floats) -> Floats:
        """Return every F_m, shape ``(..., M)``, of models ``(..., 2)``."""
        return np.stack([np.logaddexp(0.0, -(w @ points.T)).mean(axis=-1) for points in self.signed], axis=-1)

    def gradients(self, w: Floats) -> Floats:
        """Return every gradient at one model, times its factor, shape ``(M, 2)``."""
        pairs = zip(self.signed, self.factors, strict=True)
        return np.array([-f * (points.T @ (1 / (1 + np.exp(points @ w)))) / len(points) for points, f in pairs])

    def errors(self, w: Floats) -> Floats:
        """Return each agent's share of points about which a model is wrong, shape ``(M,)``."""
        return np.array([(points @ w <= 0).mean() for points in self.signed])


@dataclass(frozen=True)
class Strip:
    """Figure 6's agents."""

    def losses(self, w: Floats) -> Floats:
        """Return F_1 and F_2, shape ``(..., 2)``, of models ``(..., 2)``."""
        bowl = (w[..., 0] - 1.5) ** 2 + w[..., 1] ** 2 / 4 - 2
        return np.maximum(np.stack([np.abs(w[..., 0]) - 0.25, bowl / 2], axis=-1), 0.0)

    def gradients(self, w: Floats) -> Floats:
        """Return both gradients at one model, shape ``(2, 2)``; zero where a loss is."""
        slopes = np.array([[np.sign(w[0]), 0.0], [w[0] - 1.5, w[1] / 4]])
        return np.asarray(slopes * (self.losses(w) > 0)[:, None])


def arcs(seed: int) -> tuple[Floats, ...]:
    """Return figure 1's drawn agents: ten points each on mirrored 100-degree arcs."""
    rng, agents = generator(seed, "adagd-arcs"), []
    for side in (1, -1):
        inner, outer = rng.uniform(-45, 20, 7), rng.uniform(-80, -66)
        angles = np.radians(side * np.array([-80, outer, *inner, 20]))
        agents.append(np.stack([np.cos(angles), np.sin(angles)], axis=1))
    return tuple(agents)


def ball(seed: int) -> tuple[Floats, ...]:
    """Draw observation 1's agents."""
    rng = generator(seed, "adagd-ball")
    radius, angle = np.sqrt(rng.random(300)), rng.uniform(0, 2 * np.pi, 300)
    points = np.stack([-np.abs(radius * np.cos(angle)), radius * np.sin(angle)], axis=1)
    return np.concatenate([points, points * [1, -1]]), np.array([[-1.0, 0.0]])


def separator(signed: tuple[Floats, ...], start: Floats) -> Floats:
    """Return gradient descent's result that keeps all agents.

    It is nearly the direction of the max-margin separator.
    """
    longer = 0.5 * 1.01 ** np.arange(2000)  # the longer the model, the less it turns in a step
    return np.asarray(uniform(Separators(signed, (1.0,) * len(signed)), start, longer, 0.0).points[-1])


def separator_errors(leaves: bool, precision: float, seed: int) -> dict[str, float]:
    """Return the errors of a separator of figure 1's agents.

    Args:
        leaves: whether the first agent that is content leaves, and the other trains on alone.
        precision: epsilon.
        seed: of the draw.
    """
    signed, start = arcs(seed), 0.1 * generator(seed, "adagd-start").standard_normal(2)
    problem, trained = Separators(signed), signed
    if leaves:
        path = uniform(problem, start, [0.5] * 2000, precision)
        index = min(path.left.values())
        gone = int(np.argmin(path.losses[index]))
        trained, start = (signed[1 - gone],), path.points[index]
    errors = problem.errors(separator(trained, start))
    return {"error": float(errors.mean()), "worst": float(errors.max())}


def compute(settings: Mapping[str, Any], seed: int) -> Mapping[str, Any]:
    """Return the numbers of one row."""
    if "leaves" in settings:
        return separator_errors(settings["leaves"], settings["precision"], seed)
    rng, precision = generator(seed, "adagd-draws"), settings["precision"]
    paths = [_path(settings, rng, 1000 * seed + draw) for draw in range(settings["draws"])]
    return {
        **summary(paths, precision),
        "served": sum(bool((path.losses[-1] <= precision).all()) for path in paths) / len(paths),
        "stopped": sum(path.stopped for path in paths) / len(paths),
        "loss-1": float(sum(path.losses[-1, 0] for path in paths)) / len(paths),
        "points": paths[0].points.tolist(),
    }


def _path(settings: Mapping[str, Any], rng: np.random.Generator, seed: int) -> Trajectory:
    """Return one drawn path: from a drawn start, of separators with drawn steps and factors."""
    precision = settings["precision"]
    if settings["case"] != "strip":
        signed = arcs(seed) if settings["case"] == "arcs" else ball(seed)
        problem, start = Separators(signed, tuple(rng.uniform(0.3, 1.0, 2))), 2 * rng.standard_normal(2)
        return uniform(problem, start, [rng.uniform(0.5, 2.0)] * 5000, precision)
    start = np.array([-1.0, 5.0]) + rng.uniform(-0.3, 0.3, 2)
    if settings["method"] == "adagd":
        return adagd(Strip(), start, precision / 4, precision, 1500)
    return uniform(Strip(), start, [0.02] * 5000, precision)


def figure_1(results: Results) -> Figure:
    """Draw the agents of seed 0 with the separator of each, and of both."""
    signed, start = arcs(0), np.full(2, 0.1)
    figure = new_figure(10.5, 3.9)
    for axes, shown, title in zip(
        figure.subplots(1, 3), ((0,), (1,), (0, 1)), ("(a) agent 1", "(b) agent 2", "(c) both"), strict=True
    ):
        drawn = [(_COLOURS[m], (signed[m],)) for m in shown] + ([(BLACK, signed)] if len(shown) > 1 else [])
        for colour, points in drawn:
            w = separator(points, start)
            across = np.array([-w[1], w[0]]) / np.linalg.norm(w)
            axes.plot(*np.outer(across, [-1.1, 1.1]), color=colour, label=f"max-margin, {_NAMES[colour]}")
        for m in shown:
            for label, marker in ((1, "+"), (-1, "_")):
                axes.plot(*(label * signed[m][(label < 0) :: 2]).T, marker, color=_COLOURS[m], markersize=11)
        axes.set(xlim=(-1.2, 1.2), ylim=(-1.2, 2.0), aspect="equal", title=title, xlabel="$x_1$", ylabel="$x_2$")
        axes.legend(fontsize=8, loc="upper center", title="+ and -: labels", title_fontsize=8)
    return figure


def figure_6(results: Results) -> Figure:
    """Draw both agents' regions and level sets, and the first path of each row."""
    figure = new_figure(6.6, 6)
    axes = figure.subplots()
    draw_agents(axes, Strip(), (-1.9, 3.6, -3.5, 5.6), 1e-9, [0.1, 1])
    for arm, colour in zip(results.arms, (PURPLE, BLACK), strict=False):
        draw_path(axes, np.array(results.of(arm.name)[0].lines[0]["points"]), colour, arm.shown)
    axes.set_title("orange: $F_1 = 0$, green: $F_2 = 0$; lines: $F_m$ at $\\epsilon$ and 1", fontsize=10)
    axes.legend(fontsize=8)
    return figure
