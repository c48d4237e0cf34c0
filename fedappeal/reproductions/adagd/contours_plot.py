"""The picture of ADA-GD's figure 5: contours, bad regions and trajectories in the plane. Needs matplotlib."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedappeal.reproductions.adagd.toy import PRECISION, SHIFT, STARTS, Floats, Problem
from fedappeal.studies.experiment import Results
from fedappeal.views.comparison.figures import new_figure, save

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

AGENT_1, AGENT_2, BLUE, PURPLE, BLACK, GREY = "#e69f00", "#009e73", "#0072b2", "#cc79a7", "#000000", "#777777"
ASPECT = 0.81
"""Height by width of every panel."""


def figure_5(results: Results, stem: Path) -> None:
    """Draw the figure from the runs of the first seed; write ``stem`` .png and .svg."""
    import matplotlib as mpl

    figure = new_figure(14, 5)
    left, middle, right = figure.subplots(1, 3)
    _example_1(left, results)
    _family(middle, results)
    _losses(right, results)
    _legend(figure)
    with mpl.rc_context({"hatch.color": GREY, "hatch.linewidth": 0.4}):
        save(figure, stem)


def _example_1(axes: "Axes", results: Results) -> None:
    _background(axes, Problem(), (-2.1, 2.1, -1.7, 1.7))
    colours = dict(zip(STARTS, (BLUE, BLUE, PURPLE, PURPLE), strict=True))
    for name, (start, _) in STARTS.items():
        _path(axes, _points(results, f"{name}, uniform, one long step"), colours[name])
        _path(axes, _points(results, f"{name}, ADA-GD"), BLACK)
        above = start[1] > 0
        _name(axes, f"${name}$", start, (0, 8 if above else -8), va="bottom" if above else "top")
    axes.set_title("(a) example 1", loc="left")


def _family(axes: "Axes", results: Results) -> None:
    _background(axes, Problem(SHIFT), (-0.8, 2.3, -0.7, 1.811))
    edge = np.array([-0.8, 2.3])
    axes.plot(edge, edge - PRECISION, color=AGENT_2, linestyle="--", linewidth=1)
    _name(axes, "$S_2^*$ of $P_0$", (1.5, 1.4), (7, 0), color=AGENT_2, ha="left", va="top", fontsize=9)
    path = _points(results, "P_alpha', uniform")
    _path(axes, path, PURPLE)
    _path(axes, _points(results, "P_alpha', ADA-GD"), BLACK)
    if len(path):
        _name(axes, "$w_0$", path[0], (0, 8))
        _name(axes, "$w_{r_0}$", path[3], (0, 8))
    axes.set_title("(b) observation 4, $P_{\\alpha'}$", loc="left")


def _losses(axes: "Axes", results: Results) -> None:
    for name, colour in (("P_alpha', uniform", PURPLE), ("P_alpha', ADA-GD", BLACK)):
        if not (line := _line(results, name)):
            continue
        losses = np.array(line["losses"])
        for m, style in enumerate(("-", "--")):
            label = f"{'ADA-GD' if colour == BLACK else 'uniform'}: $F_{m + 1}$"
            axes.plot(losses[:, m], style, color=colour, linewidth=1.6, label=label)
            if str(m) in line["left"]:
                index = line["left"][str(m)]
                axes.plot(index, losses[index, m], "X", color=colour, markersize=9, markeredgecolor="white")
    for factor in (1, 4):
        axes.axhline(factor * PRECISION, color=GREY, linewidth=0.8, linestyle=":")
        axes.annotate(
            f"${factor if factor > 1 else ''}\\epsilon$",
            (1.0, factor * PRECISION),
            (4, 0),
            xycoords=("axes fraction", "data"),
            textcoords="offset points",
            va="center",
            color=GREY,
        )
    axes.set(xlabel="round", ylabel="loss", ylim=(-0.03, None), box_aspect=ASPECT)
    axes.set_title("(c) losses in (b); cross: leaves", loc="left")
    axes.legend(fontsize=9, loc="upper right")


def _background(axes: "Axes", problem: Problem, limits: tuple[float, float, float, float]) -> None:
    """Draw both agents' contours, their epsilon-sublevel sets, and the bad region."""
    x, y = np.meshgrid(np.linspace(*limits[:2], 500), np.linspace(*limits[2:], 500))
    grid = np.stack([x, y], axis=-1)
    losses = problem.losses(grid)
    for m, colour in enumerate((AGENT_1, AGENT_2)):
        axes.contour(x, y, losses[..., m], levels=[0.5, 1.0, 1.5], colors=colour, linewidths=0.7, alpha=0.45)
        axes.contourf(x, y, losses[..., m], levels=[-1, PRECISION], colors=colour, alpha=0.22)
    both = (losses <= PRECISION).all(axis=-1).astype(float)
    axes.contourf(x, y, both, levels=[0.5, 1.5], colors="#ffffff", alpha=0.9)
    bad = problem.bad_region(grid, PRECISION).astype(float)
    axes.contourf(x, y, bad, levels=[0.5, 1.5], colors="none", hatches=["..."])
    axes.set(xlim=limits[:2], ylim=limits[2:], box_aspect=ASPECT, xlabel="$w$, first part", ylabel="$w$, second part")


def _legend(figure: "Figure") -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    entries: list[Any] = [
        Line2D([], [], color=BLUE, linewidth=3, label="uniform: a long step into the bad region"),
        Line2D([], [], color=PURPLE, linewidth=3, label="uniform: into $S_2^*$, agent 2 leaves agent 1 alone"),
        Line2D([], [], color=BLACK, label="ADA-GD (dot: start, star: end)"),
        Patch(facecolor=AGENT_1, alpha=0.3, label="$S_1^*$: agent 1 leaves"),
        Patch(facecolor=AGENT_2, alpha=0.3, label="$S_2^*$: agent 2 leaves"),
        Patch(facecolor="white", edgecolor=GREY, hatch="...", label="bad region"),
        Patch(facecolor="white", edgecolor=GREY, label="$S^*$: good for both"),
    ]
    order = [entries[i] for i in (0, 3, 1, 4, 2, 5, 6)]  # a legend fills column by column
    figure.legend(handles=order, loc="outside lower center", ncols=4, frameon=False)


def _path(axes: "Axes", points: Floats, colour: str) -> None:
    """Draw a trajectory: a dot where it starts, a star where it ends; ADA-GD's thin on top of the other's."""
    if not len(points):
        return
    width, front = (1.6, 5) if colour == BLACK else (4.0, 3)
    axes.plot(points[:, 0], points[:, 1], color=colour, linewidth=width, zorder=front, solid_joinstyle="round")
    axes.plot(*points[0], "o", color=colour, markersize=5, zorder=front)
    axes.plot(*points[-1], "*", color=colour, markersize=13, markeredgecolor="white", markeredgewidth=0.7, zorder=6)


def _name(axes: "Axes", text: str, at: Any, offset: tuple[float, float], **style: Any) -> None:
    box = {"boxstyle": "round,pad=0.12", "facecolor": "white", "edgecolor": "none", "alpha": 0.85}
    usual: dict[str, Any] = {"ha": "center", "va": "bottom", "zorder": 7, "bbox": box}
    axes.annotate(text, at, offset, textcoords="offset points", **(usual | style))


def _line(results: Results, arm: str) -> Any:
    runs = results.of(arm)
    return runs[0].lines[0] if runs else None


def _points(results: Results, arm: str) -> Floats:
    line = _line(results, arm)
    return np.array(line["points"] if line else np.empty((0, 2)))
