"""The pictures of ADA-GD's figures 2 and 3: accuracy over rounds, and by precision. Needs matplotlib."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedappeal.reproductions.adagd import settings as agents
from fedappeal.studies.experiment import Results, RunResult
from fedappeal.views.comparison.figures import COLOURS, new_figure, save
from fedappeal.views.comparison.measures import Measure
from fedappeal.views.comparison.statistics import Interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ByPrecision = Mapping[float, str]
"""Names of rows by epsilon."""


def figure_2(results: Results, stem: Path) -> None:
    """Draw average and population accuracy of the first seed, a row for each group of arms; write .png and .svg."""
    groups = list(dict.fromkeys(arm.group for arm in results.arms))
    figure = new_figure(11, 2.9 * len(groups) + 0.5)
    grid = figure.subplots(len(groups), 2, squeeze=False, sharex=True)
    for panels, group in zip(grid, groups, strict=True):
        arms = [arm for arm in results.arms if arm.group == group]
        for axes, reading, label in zip(
            panels, (agents.average, agents.population), ("average", "population"), strict=True
        ):
            for arm in reversed(arms):
                colour = COLOURS[0] if arm.name.startswith("rational") else "#aaaaaa"
                _over_rounds(axes, results.of(arm.name)[0], reading, colour, arm.shown)
            axes.set_ylabel(f"{label} accuracy %")
            axes.grid(alpha=0.3)
        panels[0].set_title(f"{group} (seed 0; dashed: an agent leaves)", loc="left", fontsize=10)
    handles, labels = grid[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2, frameon=False)
    for axes in grid[-1]:
        axes.set_xlabel("round")
    save(figure, stem)


def _over_rounds(axes: "Axes", run: RunResult, reading: agents.Reading, colour: str, label: str) -> None:
    shown = agents.recorded(run.lines, reading)
    axes.plot([r for r, _ in shown], [100 * v for _, v in shown], color=colour, linewidth=1.5, label=label)
    for left in agents.defections(run.lines):
        axes.axvline(left, color=colour, linestyle="--", linewidth=0.8, alpha=0.7)


def figure_3(results: Results, stem: Path, columns: Mapping[str, Mapping[int, ByPrecision]]) -> None:
    """Draw the accuracies by precision, a row for each of the paper's parts; write .png and .svg.

    Args:
        results: the runs.
        stem: the files' path, without an ending.
        columns: heading -> K -> the rows' names by epsilon; a column without runs is left out.
    """
    shown = {
        heading: by_steps
        for heading, by_steps in columns.items()
        if any(results.of(arm) for rows in by_steps.values() for arm in rows.values())
    }
    figure = new_figure(3.8 * len(shown) + 1, 9)
    grid = figure.subplots(3, len(shown), squeeze=False, sharex=True, sharey="row")
    for column, (heading, by_steps) in zip(grid.T, shown.items(), strict=True):
        for axes, measure in zip(column, (agents.END_ACCURACY, agents.POPULATION), strict=False):
            for (k, rows), colour in zip(by_steps.items(), COLOURS, strict=False):
                _by_precision(axes, results, rows, measure, colour, f"K = {k}")
        most = [k for k, rows in by_steps.items() if results.of(rows[max(rows)])][-1]
        for measure, colour, label in (
            (agents.HIGHEST, COLOURS[3], "highest"),
            (agents.END_ACCURACY, COLOURS[7], "mean"),
            (agents.LOWEST, COLOURS[4], "lowest"),
        ):
            _by_precision(column[2], results, by_steps[most], measure, colour, f"{label}, K = {most}")
        column[0].set_title(heading, fontsize=11)
        column[2].set_xlabel("epsilon (0: no agent leaves)")
    for axes, label in zip(grid[:, 0], ("(a) average", "(b) population", "(c) single agents"), strict=True):
        axes.set_ylabel(f"{label}: accuracy %")
        axes.legend(fontsize=9, loc="lower left")
    for axes in grid.flat:
        axes.grid(alpha=0.3)
    save(figure, stem)


def _by_precision(
    axes: "Axes", results: Results, rows: ByPrecision, measure: Measure, colour: str, label: str
) -> None:
    found = [(p, values) for p, arm in rows.items() if (values := results.numbers(arm, measure))]
    if not found:
        return
    axes.errorbar(
        [p for p, _ in found],
        [float(np.mean(values)) for _, values in found],
        yerr=[Interval.of(values).half or 0.0 for _, values in found],
        color=colour,
        marker="o",
        markersize=3.5,
        linewidth=1.4,
        capsize=2.5,
        label=label,
    )
