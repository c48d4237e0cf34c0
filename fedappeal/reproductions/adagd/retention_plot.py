"""The pictures of ADA-GD's figure 7: accuracy over rounds, where agents leave, and by step size. Needs matplotlib."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedappeal.reproductions.adagd.settings import AGENTS_LOST, END_ACCURACY, defections
from fedappeal.studies.experiment import Results, RunResult
from fedappeal.studies.pictures import series
from fedappeal.views.comparison.figures import COLOURS, new_figure, save

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOUR = {
    "Local SGD, no agent leaves": "#aaaaaa",
    "Local SGD": COLOURS[0],
    "ADA-GD": COLOURS[1],
    "ADA-GD, slack 1": COLOURS[2],
}
"""Colours of the algorithms, in the order in which they are drawn."""

Curves = Mapping[str, Sequence[RunResult]]
"""Runs by algorithm, one a seed."""


def figure_7a(stem: Path, panels: Mapping[str, Curves]) -> None:
    """Draw the accuracy over the rounds, a panel for each setting by its title; write .png and .svg."""
    figure = new_figure(4.9 * max(len(panels), 1), 4.3)
    row = figure.subplots(1, max(len(panels), 1), squeeze=False)[0]
    for axes, (title, curves) in zip(row, panels.items(), strict=False):
        _accuracies(axes, curves)
        axes.set_title(fill(title, 46), loc="left", fontsize=10)
    row[0].set_ylabel("test accuracy %, both agents")
    _legend(figure, row[0])
    save(figure, stem)


def figure_7b(
    results: Results, stem: Path, panels: Mapping[str, Curves], steps: Mapping[str, Mapping[float, str]]
) -> None:
    """Draw the accuracy over the rounds, and that of all steps at the end; write .png and .svg.

    Args:
        results: the runs.
        stem: the files' path, without an ending.
        panels: the two panels over the rounds, by title.
        steps: algorithm -> the rows' names by step size.
    """
    figure = new_figure(14.7, 4.3)
    *over_rounds, right = figure.subplots(1, 3)
    for axes, (title, curves) in zip(over_rounds, panels.items(), strict=True):
        _accuracies(axes, curves)
        axes.set_title(title, loc="left", fontsize=10)
    over_rounds[0].set_ylabel("test accuracy %, both agents")
    for (name, rows), marker in zip(steps.items(), "osv", strict=True):
        _by_step(right, results, name, rows, marker)
    right.set(xlabel="step size eta (logarithmic axis)", ylabel="test accuracy % at the end (mean)", xscale="log")
    right.set_title("all steps; crossed out: an agent leaves, in some seed", loc="left", fontsize=10)
    right.grid(alpha=0.3)
    _legend(figure, right)
    save(figure, stem)


def _legend(figure: "Figure", axes: "Axes") -> None:
    """Name the curves of one panel, and the meanings of line styles, below all panels."""
    from matplotlib.lines import Line2D

    curves, labels = axes.get_legend_handles_labels()
    meanings = {
        "thin: one seed": Line2D([], [], color="black", linewidth=0.6, alpha=0.5),
        "an agent leaves": Line2D([], [], color="black", linestyle="--", linewidth=0.8),
        "the last run has ended": Line2D(
            [], [], color="black", linestyle=":", marker="o", markevery=[0], markersize=5
        ),
    }
    figure.legend(
        [*curves, *meanings.values()],
        [*labels, *meanings],
        loc="outside lower center",
        ncols=len(labels) + len(meanings),
        frameon=False,
        columnspacing=1.4,
    )


def _accuracies(axes: "Axes", runs: Curves) -> None:
    """Draw each label's runs thinly and their mean; a run that has ended keeps its last model (dotted)."""
    end = max((int(run.lines[-1]["round"]) for found in runs.values() for run in found), default=1)
    for label, found in runs.items():
        curves = {run.seed: curve for run in found if len((curve := series(run, "accuracy"))[0])}
        if not curves:
            continue
        style: dict[str, Any] = {"color": COLOUR[label]}
        for run in (run for run in found if run.seed in curves):
            rounds, values = curves[run.seed]
            axes.plot(rounds, 100 * values, linewidth=0.6, alpha=0.5, **style)
            for left in defections(run.lines):
                axes.axvline(left, linestyle="--", linewidth=0.6, alpha=0.45, **style)
        kept = 100 * np.array([kept_on(rounds, values, end) for rounds, values in curves.values()]).mean(axis=0)
        ended = max(int(rounds[-1]) for rounds, _ in curves.values())
        axes.plot(np.arange(1, ended + 1), kept[:ended], linewidth=2.2, label=label, **style)
        if ended < end:
            axes.plot([ended, end], [kept[-1]] * 2, ":", linewidth=1.6, **style)
            axes.plot(ended, kept[-1], "o", markersize=5, **style)
    axes.set(xlabel="round (logarithmic axis)", xscale="log")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.grid(alpha=0.3)


def kept_on(rounds: NDArray[np.int64], values: NDArray[np.float64], end: int) -> NDArray[np.float64]:
    """Return the value of each round 1, ..., ``end``: the last one recorded by then, else the first one."""
    latest = np.searchsorted(rounds, np.arange(1, end + 1), side="right") - 1
    return values[np.maximum(latest, 0)]


def _by_step(axes: "Axes", results: Results, name: str, rows: Mapping[float, str], marker: str) -> None:
    done = {eta: arm for eta, arm in rows.items() if results.of(arm)}
    ends = {eta: float(np.mean(results.numbers(arm, END_ACCURACY))) for eta, arm in done.items()}
    axes.plot(list(ends), list(ends.values()), marker=marker, color=COLOUR[name], label=name, linewidth=1.5)
    lost = [(eta, ends[eta]) for eta, arm in done.items() if any(results.numbers(arm, AGENTS_LOST))]
    axes.plot(
        [eta for eta, _ in lost], [end for _, end in lost], "x", color="black", markersize=11, markeredgewidth=2
    )
