"""The pictures of ADA-GD's figure 7: accuracy over rounds, where agents leave, and by step size. Needs matplotlib."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedappeal.experiments.adagd_retention import MAIN, PAPER, SMALL, SUFFIXES
from fedappeal.experiments.adagd_settings import AGENTS_LOST, END_ACCURACY, defections
from fedappeal.experiments.adagd_steps import ALGORITHMS, LOCAL, TENFOLD, largest, row, tenfold
from fedappeal.experiments.experiment import Missing, Numbers, Results, RunResult, Unmeasured
from fedappeal.experiments.plots import COLOURS, new_figure, save, series

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLOURS = {
    "Local SGD, nobody leaves": "#aaaaaa",
    "Local SGD": COLOURS[0],
    "ADA-GD": COLOURS[1],
    "ADA-GD, slack 1": COLOURS[2],
}


def figure_7a(results: Results, stem: Path) -> None:
    """Draw the accuracy over the rounds, a panel for each of three settings; write .png and .svg."""
    groups = [group for group in (PAPER, SMALL, MAIN) if results.of("ADA-GD" + SUFFIXES[group])]
    figure = new_figure(4.9 * max(len(groups), 1), 4.3)
    panels = figure.subplots(1, max(len(groups), 1), squeeze=False)[0]
    for axes, group in zip(panels, groups, strict=False):
        _accuracies(axes, {name: results.of(name + SUFFIXES[group]) for name in _COLOURS})
        axes.set_title(group, loc="left", fontsize=10)
    panels[0].set_ylabel("test accuracy %, both agents")
    _legend(figure, panels[0])
    save(figure, stem)


def figure_7b(results: Results, stem: Path) -> None:
    """Draw the accuracy of the chosen steps over the rounds, and of all steps at the end; write .png and .svg."""
    figure = new_figure(14.7, 4.3)
    left, middle, right = figure.subplots(1, 3)
    for axes, choose, title in (
        (left, largest, "each with its own largest step that loses nobody"),
        (middle, _ten_times, f"ADA-GD with {TENFOLD:g} times local SGD's largest step"),
    ):
        _accuracies(axes, {name: chosen(results, name, choose) for name in ALGORITHMS})
        axes.set_title(title, loc="left", fontsize=10)
    left.set_ylabel("test accuracy %, both agents")
    for name, marker in zip(ALGORITHMS, "osv", strict=True):
        _by_step(right, results, name, marker)
    right.set(xlabel="step size eta (logarithmic axis)", ylabel="test accuracy % at the end (mean)", xscale="log")
    right.set_title("all steps; crossed out: an agent leaves, in some seed", loc="left", fontsize=10)
    right.grid(alpha=0.3)
    _legend(figure, right)
    save(figure, stem)


def _legend(figure: "Figure", axes: "Axes") -> None:
    """Name the curves of one panel below all, and what the lines beside them mean."""
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


def _ten_times(number: Numbers, name: str) -> float:
    return largest(number, name) if name == LOCAL else tenfold(number, name)


def chosen(results: Results, name: str, choose: Callable[[Numbers, str], float]) -> list[RunResult]:
    """Return an algorithm's run of each seed, with the step that is chosen for that seed; not where there is none."""
    found = []
    for seed in sorted({run.seed for run in results.runs}):
        try:
            eta = choose(results.of_seed(seed), name)
        except (Missing, Unmeasured):  # the short form has not all rows
            continue
        found += [run for run in results.of(row(name, eta)) if run.seed == seed]
    return found


def _accuracies(axes: "Axes", runs: Mapping[str, Sequence[RunResult]]) -> None:
    """Draw each label's runs thinly and their mean; a run that has ended keeps its last model (dotted)."""
    end = max((int(run.lines[-1]["round"]) for found in runs.values() for run in found), default=1)
    for label, found in runs.items():
        curves = {run.seed: curve for run in found if len((curve := series(run, "accuracy"))[0])}
        if not curves:
            continue
        style: dict[str, Any] = {"color": _COLOURS[label]}
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


def _by_step(axes: "Axes", results: Results, name: str, marker: str) -> None:
    rows = [(eta, row(name, eta)) for eta in ALGORITHMS[name] if results.of(row(name, eta))]
    steps = [eta for eta, _ in rows]
    ends = [float(np.mean(results.numbers(arm, END_ACCURACY))) for _, arm in rows]
    axes.plot(steps, ends, marker=marker, color=_COLOURS[name], label=name, linewidth=1.5)
    lost = [(eta, end) for (eta, arm), end in zip(rows, ends, strict=True) if any(results.numbers(arm, AGENTS_LOST))]
    axes.plot(
        [eta for eta, _ in lost], [end for _, end in lost], "x", color="black", markersize=11, markeredgewidth=2
    )
