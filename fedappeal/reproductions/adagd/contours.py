"""ADA-GD, figure 5 and Observations 2 to 4: in the plane averaging loses agents, ADA-GD does not."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fedappeal.protocol.draws import generator
from fedappeal.reproductions.adagd import toy
from fedappeal.reproductions.adagd.toy import PRECISION, Floats, ToyAgents, ToyProblem
from fedappeal.studies.experiment import Numbers, Results
from fedappeal.studies.plan import slug
from fedappeal.views.comparison.measures import Figure, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

AGENT_1, AGENT_2, BLUE, PURPLE, BLACK, GREY = "#e69f00", "#009e73", "#0072b2", "#cc79a7", "#000000", "#777777"
_REGIONS = (
    "orange: $S_1^*$, agent 1 leaves; green: $S_2^*$, agent 2 leaves; white inside: good for both; dotted: bad region"
)


def figure_5(results: Results) -> Figure:
    """Draw the figure from the runs of the first seed."""
    figure = new_figure(14, 4.4)
    left, middle, right = figure.subplots(1, 3)
    _example_1(left, results)
    _family(middle, results)
    _losses(right, results)
    for axes, title in ((left, "(a) example 1"), (middle, "(b) observation 4, $P_{\\alpha'}$")):
        axes.set_title(f"{title} (dot: start, star: end)", loc="left")
    for axes in (left, middle, right):
        axes.set_box_aspect(0.81)
        axes.legend(fontsize=8)
    figure.supxlabel(_REGIONS, fontsize=10)
    return figure


def _example_1(axes: "Axes", results: Results) -> None:
    _bad_region(axes, ToyProblem(), (-2.1, 2.1, -1.7, 1.7))
    labels = {BLUE: "uniform: a long step", PURPLE: "uniform: into $S_2^*$, agent 2 leaves", BLACK: "ADA-GD"}
    for number, colour in enumerate((BLUE, BLUE, PURPLE, PURPLE), start=1):
        path = _points(results, f"w-{number}-uniform-one-long-step")
        draw_path(axes, path, colour, labels.pop(colour, ""))
        draw_path(axes, _points(results, f"w-{number}-ada-gd"), BLACK, labels.pop(BLACK, ""))
        for x, y in path[:1]:
            _name(axes, f"$w_{number}$", (x, y), 8 if y > 0 else -16)


def _family(axes: "Axes", results: Results) -> None:
    arms = {arm.name: arm for arm in results.experiment.arms}
    _bad_region(axes, ToyProblem(arms["p-alpha-uniform"].settings["alpha"]), (-0.8, 2.3, -0.7, 1.811))
    edge = np.array([-0.8, 2.3])
    axes.plot(edge, edge - PRECISION, "--", color=AGENT_2, linewidth=1, label="edge of $S_2^*$ in $P_0$")
    path = _points(results, "p-alpha-uniform")
    draw_path(axes, path, PURPLE, "uniform")
    draw_path(axes, _points(results, "p-alpha-ada-gd"), BLACK, "ADA-GD")
    for text, (x, y) in zip(("$w_0$", "$w_{r_0}$"), path[:4:3], strict=False):
        _name(axes, text, (x, y))


def _losses(axes: "Axes", results: Results) -> None:
    for name, colour in (("uniform", PURPLE), ("ADA-GD", BLACK)):
        if not (line := _line(results, f"p-alpha-{slug(name)}")):
            continue
        losses = np.array(line["losses"])
        for m, style in enumerate(("-", "--")):
            axes.plot(losses[:, m], style, color=colour, linewidth=1.6, label=f"{name}: $F_{m + 1}$")
        for m, index in line["left"].items():
            axes.plot(index, losses[index, int(m)], "X", color=colour, markersize=9, markeredgecolor="white")
    for level, label in ((PRECISION, "$\\epsilon$ and $4\\epsilon$"), (4 * PRECISION, None)):
        axes.axhline(level, color=GREY, linestyle=":", linewidth=0.8, label=label)
    axes.set(xlabel="round", ylabel="loss", ylim=(-0.03, None))
    axes.set_title("(c) losses in (b); cross: leaves", loc="left")


def draw_agents(
    axes: "Axes",
    problem: ToyAgents,
    limits: tuple[float, float, float, float],
    precision: float,
    levels: Sequence[float],
) -> tuple[Floats, Floats]:
    """Draw two agents' epsilon-sublevel sets and contours; return models and losses.

    The models have shape ``(500, 500, 2)``.
    """
    grid = np.stack(np.meshgrid(np.linspace(*limits[:2], 500), np.linspace(*limits[2:], 500)), axis=-1)
    losses = problem.losses(grid)
    for m, colour in enumerate((AGENT_1, AGENT_2)):
        shown = grid[..., 0], grid[..., 1], losses[..., m]
        axes.contour(*shown, levels=levels, colors=colour, linewidths=0.7, alpha=0.6)
        axes.contourf(*shown, levels=[-1, precision], colors=colour, alpha=0.22)
    axes.set(xlim=limits[:2], ylim=limits[2:], xlabel="$w$, first part", ylabel="$w$, second part")
    return grid, losses


def _bad_region(axes: "Axes", problem: ToyProblem, limits: tuple[float, float, float, float]) -> None:
    """Draw both agents, in white what is good for both, and the bad region."""
    grid, losses = draw_agents(axes, problem, limits, PRECISION, [0.5, 1.0, 1.5])
    for where, style in (
        ((losses <= PRECISION).all(axis=-1), {"colors": "#ffffff", "alpha": 0.9}),
        (problem.bad_region(grid, PRECISION), {"colors": "none", "hatches": ["..."]}),
    ):
        axes.contourf(grid[..., 0], grid[..., 1], where.astype(float), levels=[0.5, 1.5], **style)


def draw_path(axes: "Axes", points: Floats, colour: str, label: str = "") -> None:
    """Draw a trajectory with a dot at its start, a star at its end.

    ADA-GD's is thin, on top of the other's.
    """
    if not len(points):
        return
    width, front = (1.6, 5) if colour == BLACK else (4.0, 3)
    axes.plot(points[:, 0], points[:, 1], color=colour, linewidth=width, zorder=front, label=label or None)
    axes.plot(*points[0], "o", color=colour, markersize=5, zorder=front)
    axes.plot(*points[-1], "*", color=colour, markersize=13, markeredgecolor="white", markeredgewidth=0.7, zorder=6)


def _name(axes: "Axes", text: str, at: tuple[float, float], above: float = 8) -> None:
    box = {"boxstyle": "round,pad=0.12", "facecolor": "white", "edgecolor": "none", "alpha": 0.85}
    axes.annotate(text, at, (0, above), textcoords="offset points", ha="center", zorder=7, bbox=box)


def _line(results: Results, arm: str) -> Any:
    runs = results.of(arm)
    return runs[0].lines[0] if runs else None


def _points(results: Results, arm: str) -> Floats:
    line = _line(results, arm)
    return np.array(line["points"] if line else np.empty((0, 2)))


def compute(settings: Mapping[str, Any], seed: int) -> Mapping[str, Any]:
    """Return the outcome of one row's paths, and the path itself where there is one from a given start."""
    runs = _paths(settings, seed)
    outcome = summary(runs, float(settings["precision"]))
    if "start" not in settings or settings.get("steps") == "drawn":
        return {"starts": len(runs), **outcome}
    (run,) = runs
    left = {str(m): index for m, index in run.left.items()}
    return {"points": run.points.tolist(), "losses": run.losses.tolist(), "left": left, **outcome}


def _paths(settings: Mapping[str, Any], seed: int) -> list[toy.Trajectory]:
    """Return the paths of one row's algorithm.

    From its start; with drawn sequences of steps, each in P_alpha' of Observation 4's proof; or from starts that are
    drawn from the unit disc: for small steps, those outside S_1 and S_2.
    """
    problem, precision = toy.ToyProblem(settings.get("alpha")), float(settings["precision"])
    if settings.get("steps") == "drawn":
        start = settings["start"]
        return [
            _run(toy.ToyProblem(toy.harmful_shift(start, steps, precision)), start, settings, steps)
            for steps in drawn_steps(settings["draws"], seed)
        ]
    if "start" in settings:
        return [_run(problem, np.array(settings["start"]), settings)]
    starts = drawn_starts(settings["draws"], seed)
    if settings["method"] == "two-steps":
        steps_of = (toy.harmful_steps(problem, start, precision) or (0.0, 0.0) for start in starts)
        return [toy.uniform(problem, *of, precision) for of in zip(starts, steps_of, strict=True)]
    return [_run(problem, start, settings) for start in starts if (problem.losses(start) > precision).all()]


def _run(
    problem: toy.ToyProblem, start: toy.Floats, settings: Mapping[str, Any], steps: Iterable[float] | None = None
) -> toy.Trajectory:
    """Return the path of a row's algorithm from a start.

    ``steps``: averaging's, in place of the row's.
    """
    precision = float(settings["precision"])
    if settings["method"] == "adagd":
        return toy.adagd(problem, start, settings["step-size"], precision)
    if steps is None:
        steps = [*settings["first-steps"], *[settings["short-step"]] * 500]
    return toy.uniform(problem, start, steps, precision)


def drawn_steps(count: int, seed: int) -> toy.Floats:
    """Return sequences of 500 drawn step sizes, shape ``(count, 500)``.

    Each sequence lies between 0 and a size of its own.
    """
    rng = generator(seed, "adagd-steps")
    return np.asarray(10.0 ** rng.uniform(-2, 0, (count, 1)) * rng.random((count, 500)))


def drawn_starts(count: int, seed: int) -> toy.Floats:
    """Return starts drawn evenly from the unit disc, shape ``(count, 2)``."""
    rng = generator(seed, "adagd-starts")
    radius, angle = np.sqrt(rng.random(count)), 2 * np.pi * rng.random(count)
    return np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1)


def summary(runs: list[toy.Trajectory], precision: float) -> dict[str, float]:
    """Return the outcome of paths: lost agents, harmful defections, final and largest F."""
    return {
        "lost": sum(len(run.left) for run in runs) / len(runs),
        "harmful": sum(run.harmful(precision) for run in runs) / len(runs),
        "loss": sum(run.loss for run in runs) / len(runs),
        "largest": max(run.loss for run in runs),
    }


def keeps_all(number: Numbers, row: str) -> float:
    """Return theorem 1's margin: no agent is lost, final F at most 4 epsilon."""
    return min(-number(row, "lost"), 4 * PRECISION - number(row, "largest"))
