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
from fedappeal.studies.experiment import Arm, Claim, Experiment, Quick, Results, at_least, at_most
from fedappeal.views.comparison.measures import Figure, Measure, last, new_figure

PRECISION = 0.3
"""epsilon of the separators."""


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
        """Return both gradients at one model, rows of shape ``(2, 2)``; zero where a loss is."""
        slopes = np.array([[np.sign(w[0]), 0.0], [w[0] - 1.5, w[1] / 4]])
        return np.asarray(slopes * (self.losses(w) > 0)[:, None])


def arcs(seed: int) -> tuple[Floats, ...]:
    """Draw figure 1's agents: ten points each on an arc of 100 degrees, the other agent's arc mirrored."""
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
    """Return where gradient descent gets that no agent leaves: nearly the direction of the max-margin separator."""
    longer = 0.5 * 1.01 ** np.arange(2000)  # the longer the model, the less it turns in a step
    return np.asarray(uniform(Separators(signed, (1.0,) * len(signed)), start, longer, 0.0).points[-1])


def separated(leaves: bool, precision: float, seed: int) -> dict[str, float]:
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
    """Return what one row comes to."""
    if "leaves" in settings:
        return separated(settings["leaves"], settings["precision"], seed)
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


def _figure_1(results: Results) -> Figure:
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


def _figure_6(results: Results) -> Figure:
    """Draw both agents' regions and level sets, and the first path of each row."""
    figure = new_figure(6.6, 6)
    axes = figure.subplots()
    draw_agents(axes, Strip(), (-1.9, 3.6, -3.5, 5.6), 1e-9, [0.1, 1])
    for arm, colour in zip(results.arms, (PURPLE, BLACK), strict=False):
        draw_path(axes, np.array(results.of(arm.name)[0].lines[0]["points"]), colour, arm.name)
    axes.set_title("orange: $F_1 = 0$, green: $F_2 = 0$; lines: $F_m$ at $\\epsilon$ and 1", fontsize=10)
    axes.legend(fontsize=8)
    return figure


_COLOURS = (AGENT_1, AGENT_2)
_NAMES = {AGENT_1: "agent 1", AGENT_2: "agent 2", BLACK: "both"}
_STAY, _LEAVE = "no agent leaves", "the first content agent leaves, the other trains on"
_BALL, _ARCS = "observation 1's agents", "figure 1's agents"
_FIGURE, _DRAWN = (
    "Figure 1: where gradient descent gets",
    "Observation 1: any start, steps and weights, all agents leave",
)
_AVERAGED, _ADAGD = "averaging, small steps", "ADA-GD"
_HARMFUL = Measure("harmful", "harmful defections, % of the paths", last("harmful"), True, "lower", digits=1)
_LOST = Measure("lost", "agents lost, of 2", last("lost"), better="lower", digits=1)

EXPERIMENTS = (
    Experiment(
        name="adagd-figure1",
        title="ADA-GD: a defection that costs accuracy, and one that cannot",
        source="ADA-GD, figure 1 and observation 1",
        claim="If one of figure 1's agents defects, the other's max-margin separator has an average error of 10 %; "
        "in observation 1's problem any defection is benign, whatever the algorithm.",
        settings={"precision": PRECISION},
        arms=(
            Arm(_STAY, {"leaves": False}, {"error": 0.0}, _FIGURE),
            Arm(_LEAVE, {"leaves": True}, {"error": 10.0, "worst": 20.0}, _FIGURE),
            Arm(_BALL, {"case": "ball", "draws": 50}, {}, _DRAWN),
            Arm(_ARCS, {"case": "arcs", "draws": 10, "precision": 0.02}, {}, _DRAWN),
        ),
        measures=(
            Measure("error", "average error %", last("error"), True, "lower", digits=1),
            Measure("worst", "error of the agent that left %", last("worst"), True, "lower", digits=1),
            _HARMFUL,
            Measure("served", "paths that end good for both %", last("served"), True, digits=1),
        ),
        claims=(
            Claim("no agent leaves: no error", at_most(_STAY, "error", 0.0), _FIGURE, "points", inclusive=True),
            Claim("one leaves: an average error of 10 %", at_least(_LEAVE, "error", 10 - 1e-9), _FIGURE, "points"),
            Claim("no defection is harmful", at_most(_BALL, "harmful", 0.0), _DRAWN, "points", inclusive=True),
            Claim("every path ends good for both", at_least(_BALL, "served", 100), _DRAWN, "points", inclusive=True),
            Claim("with figure 1's agents some are", at_least(_ARCS, "harmful", 0.0), _DRAWN, "points", ours=True),
        ),
        figure=_figure_1,
        notes="""\
- Ten points an agent, at drawn angles on the circle (the paper's are in the ball, without numbers), so that each
  agent's separator is wrong about two of the other's. Logistic loss, 2000 steps of gradient descent.
- Observation 1: agent 1's ball is a sample of 600 points, symmetric in x_2; the other's points are the axis' ends.
  Each path has a start, a step size and weights of both gradients of its own, and goes on until both have left.
- Epsilon is 0.3, and 0.02 in the last row: with 0.3 figure 1's agents, too, end content with one model.
""",
        compute=compute,
    ),
    Experiment(
        name="adagd-figure6",
        title="ADA-GD: where gradients are parallel no step helps",
        source="ADA-GD, figure 6",
        claim="Without assumption 4 defections can be harmful: agent 1 leaves at the edge of its region, and with "
        "small steps the model converges to one with F_1 = 1.",
        settings={"case": "strip", "precision": 0.1, "draws": 20},
        arms=(Arm(_AVERAGED, {"method": "uniform"}, {"loss-1": 1.0}), Arm(_ADAGD, {"method": "adagd"})),
        measures=(
            Measure("loss-1", "F_1 at the end", last("loss-1"), better="lower", digits=2),
            Measure("loss", "F at the end", last("loss"), better="lower", digits=2),
            _LOST,
            _HARMFUL,
            Measure("stopped", "paths that ADA-GD ends itself %", last("stopped"), True, digits=0),
        ),
        quick=Quick({"draws": 2}),
        claims=(
            Claim("averaging: every defection is harmful", at_least(_AVERAGED, "harmful", 100), "", "points", True),
            Claim("ADA-GD loses no agent", at_most(_ADAGD, "lost", 0.0), inclusive=True, ours=True),
            Claim("ADA-GD stays above 4 epsilon (no assumption 4)", at_least(_ADAGD, "loss", 0.4), ours=True),
        ),
        figure=_figure_6,
        notes="""\
- The paper draws without numbers. Ours: F_1 is 0 on a strip, F_2 in an ellipse; at their kinks no step is taken.
  Starts are drawn around (-1, 5), epsilon is 0.1, averaging's steps 0.02, ADA-GD's epsilon / 4.
- Small steps from there to the ellipse cross the strip. ADA-GD goes along its edge to where both gradients are
  parallel, and stays: no agent leaves, and agent 2 is never served.
""",
        compute=compute,
    ),
)
