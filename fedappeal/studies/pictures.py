"""Pictures of a study: forests of paired gaps, runs by seed, curves over the rounds. Needs matplotlib.

Forests and runs by seed are drawn from a page's numbers alone, curves from the runs' histories.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import fmean, median
from textwrap import fill
from typing import TYPE_CHECKING, Any

import numpy as np

from fedappeal.studies.experiment import Contrast, Drawing, Results, RunResult
from fedappeal.studies.verdict import Verdict, verdicts
from fedappeal.views.comparison.curves import by_round
from fedappeal.views.comparison.measures import (
    COLOURS,
    DASHES,
    Figure,
    Lines,
    LineValue,
    continued,
    new_panels,
    recorded,
    value_of,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Panel = tuple[LineValue, str, bool]
"""One panel of curves: what is drawn, label of the axis, whether in per cent."""
Mark = tuple[str, Callable[[Lines], Sequence[int]]]
"""Thin vertical lines: what they stand for, and the rounds of a run that get one."""


def forest(results: Results) -> Figure:
    """Draw the gaps between two rows: a panel a measure, a colour a pair.

    Without an interval where a seed has no number.
    """
    gaps = list(_gaps(results))
    colours = {pair: COLOURS[n % len(COLOURS)] for n, pair in enumerate(dict.fromkeys(pair for *_, pair in gaps))}
    rows: dict[str, dict[str, float]] = {}
    order, last = list(dict.fromkeys(verdict.group for verdict, *_ in gaps)), 0.0
    for verdict, _, pair in sorted(gaps, key=lambda gap: order.index(gap[0].group)):
        if verdict.group not in rows:
            last += 1.5
        if pair not in rows.setdefault(verdict.group, {}):
            last += 1
            rows[verdict.group][pair] = last
    panels = {m.key: m for m in results.experiment.measures if m.key in {key for _, key, _ in gaps}}
    width, height = 3.4 + 2.6 * len(panels), 1.2 + 0.15 * last
    picture, (grid,) = new_panels(width, height, 1, len(panels), lines="x", sharey=True)
    for axes, (key, measure) in zip(grid, panels.items(), strict=True):
        axes.axvline(0, color="#000000", linewidth=0.8)
        for verdict, _, pair in (gap for gap in gaps if gap[1] == key):
            _gap(axes, verdict, rows[verdict.group][pair], colours[pair])
        axes.set_title(fill(measure.title, 30), loc="left", fontsize=9)
        axes.set_xlabel("gap, points" if measure.percent else "gap", fontsize=8)
    grid[0].set_yticks(
        [fmean(places.values()) for places in rows.values()], [fill(g, 40) for g in rows], fontsize=7.5
    )
    grid[0].set_ylim(last + 1, 1)
    _legend(picture, colours, any(verdict.paper is not None for verdict, *_ in gaps))
    return picture


def _gaps(results: Results) -> Iterator[tuple[Verdict, str, str]]:
    """Yield the verdicts that compare one measure of two rows, with its key and the pair in words."""
    labels = {arm.name: arm.shown for arm in results.experiment.arms}
    for verdict in verdicts(results):
        match verdict.contrast:
            case Contrast(one=(row, key), other=(other, same), event=None) if key == same:
                yield verdict, key, f"{labels[row]} over {labels[other]}"


def _gap(axes: "Axes", verdict: Verdict, at: float, colour: str) -> None:
    if verdict.mean is None:
        return
    axes.plot(
        list(verdict.margins.values()), [at] * len(verdict.margins), "o", color=colour, markersize=2.5, alpha=0.5
    )
    if verdict.low is not None and verdict.high is not None and not verdict.unmeasured:
        axes.plot([verdict.low, verdict.high], [at, at], color=colour, linewidth=1.6)
    axes.plot([verdict.mean], [at], "D", color=colour, markersize=3.5)
    if verdict.paper is not None:
        axes.plot([verdict.paper], [at], "x", color=colour, markersize=5)


_MEAN = "mean, 95 % interval; dots: seeds"


def _legend(picture: Figure, colours: dict[str, str], papers: bool) -> None:
    from matplotlib.lines import Line2D

    entries = [Line2D([], [], color=colour, linewidth=3, label=name) for name, colour in colours.items()]
    entries.append(Line2D([], [], color="#444444", marker="D", markersize=4, label=_MEAN))
    if papers:
        entries.append(Line2D([], [], color="#444444", marker="x", linestyle="", label="as the paper prints it"))
    picture.legend(
        handles=entries,
        loc="outside lower center",
        ncols=max(1, int(picture.get_figwidth() / (0.6 + 0.06 * max(map(len, (*colours, _MEAN)))))),
        fontsize=8,
        frameon=False,
    )


def by_seed(key: str, across: int = 4, at_least: float | None = None) -> Drawing:
    """Return a drawing of a measure's number in every run.

    A panel a group, a line a row, a dot a seed.

    Args:
        key: of the measure.
        across: panels beside one another.
        at_least: a number that is marked: runs from it on live; None: none.
    """

    def draw(results: Results) -> Figure:
        measure = results.experiment.measure(key)
        groups = dict(sorted(results.groups.items(), key=lambda group: -len(group[1])))
        wide = min(across, len(groups))
        rows = [list(groups.values())[n : n + wide] for n in range(0, len(groups), wide)]
        heights = [max(map(len, row)) + 2 for row in rows]
        size = 2.6 * wide + 1.2, 0.17 * sum(heights) + 0.5 * len(rows) + 0.5
        picture, grid = new_panels(*size, len(rows), wide, lines="x", sharex=True, height_ratios=heights)
        for axes in grid.flat[len(groups) :]:
            axes.set_visible(False)
        for axes, (group, arms) in zip(grid.flat, groups.items(), strict=False):
            for place, arm in enumerate(arms):
                numbers = results.numbers(arm.name, measure)
                heights_of = place + np.linspace(-0.25, 0.25, max(len(numbers), 2))[: len(numbers)]
                axes.plot(numbers, heights_of, "o", color=COLOURS[0], markersize=3, alpha=0.8)
                if numbers:
                    axes.plot(median(numbers), place, "|", color="#000000", markersize=10)
            if at_least is not None:
                axes.axvline(at_least, color=COLOURS[1], linestyle="--", linewidth=0.9)
            axes.set_yticks(range(len(arms)), [arm.shown for arm in arms], fontsize=7)
            axes.set_ylim(len(arms) - 0.4, -0.6)
            axes.set_title(fill(group, 38), loc="left", fontsize=7.5)
            axes.tick_params(axis="x", labelsize=7)
        line = "" if at_least is None else f"; dashed: {at_least:g}, from which on a run lives"
        picture.supxlabel(f"{measure.title} (a dot a seed, bar: median{line})", fontsize=8)
        return picture

    return draw


def curve(runs: Sequence[RunResult], of: LineValue) -> tuple[list[int], list[float]]:
    """Return rounds and means over runs, up to where a run's model diverged."""
    by_number = by_round([(run.seed, run.lines) for run in runs], lambda line: value_of(line, of))
    return list(by_number), [fmean(values) for values in by_number.values()]


def over_rounds(
    axes: "Axes",
    panel: Panel,
    runs_of: Mapping[str, Sequence[RunResult]],
    order: Sequence[str],
    mark: Mark = ("", lambda lines: ()),
    xscale: str = "linear",
) -> None:
    """Draw a panel over the rounds: thick mean lines, thin seed lines.

    A colour each label.

    A run that has ended keeps its model in the mean, and a dot stands where a label's last run has ended. A
    legend of the axes names thin lines, marks and dots, where there are any.

    Args:
        axes: where to.
        panel: what.
        runs_of: the runs by label.
        order: the labels in the order of their colours.
        mark: thin vertical lines of the runs.
        xscale: ``linear`` or ``log``.
    """
    reading, title, percent = panel
    scale = 100.0 if percent else 1.0
    ends = {label: max((int(run.lines[-1]["round"]) for run in runs), default=0) for label, runs in runs_of.items()}
    end = max(ends.values(), default=0)
    legend: dict[str, Any] = {}
    measured = {number for runs in runs_of.values() for run in runs for number in recorded(run.lines, reading)}
    for label, runs in runs_of.items():
        place = order.index(label)
        style = {"color": COLOURS[place % len(COLOURS)], "linestyle": DASHES[place % len(DASHES)]}
        for run in runs:
            rounds, values = curve([run], reading)
            axes.plot(rounds, scale * np.array(values), linewidth=0.6, alpha=0.5, **style)
            for marked in mark[1](run.lines):
                axes.axvline(marked, linewidth=0.5, alpha=0.4, color=style["color"])
                legend[mark[0]] = {"marker": "|", "markersize": 10, "linestyle": ""}
        legend |= {"one seed": {"linewidth": 0.6}} if len(runs) > 1 else {}
        # Between the rounds that evaluate, an ended run's model would be a mean of its own.
        means_of = dict(
            zip(*curve([replace(run, lines=continued(run.lines, end)) for run in runs], reading), strict=True)
        )
        means = {number: scale * mean for number, mean in means_of.items() if number in measured}
        axes.plot(list(means), list(means.values()), label=label, linewidth=1.8, **style)
        if ends[label] < end and ends[label] in means:
            axes.plot(ends[label], means[ends[label]], "o", color=style["color"], markersize=5)
            legend["the last run ends"] = {"marker": "o", "markersize": 5, "linestyle": ""}
    for name, look in legend.items():
        axes.plot([], [], color="#444444", label=name, **look)
    axes.set(xlabel="round", ylabel=title, xscale=xscale)
    axes.xaxis.set_major_formatter("{x:g}")


def curves(
    panels: Sequence[Panel],
    order: Sequence[str] = (),
    mark: Mark = ("", lambda lines: ()),
    shown: Sequence[str] = (),
    xscale: str = "linear",
) -> Drawing:
    """Return a drawing over the rounds, a row of panels a group.

    Each panel as `over_rounds` draws it.

    Args:
        panels: of each row.
        order: labels of the arms, in the order of their colours, which are the same in all groups.
        mark: thin vertical lines of the runs.
        shown: groups; none of them is there, or empty: all.
        xscale: ``linear`` or ``log``.
    """

    def figure(results: Results) -> Figure:
        labels = list(dict.fromkeys([*order, *(arm.shown for arm in results.arms)]))
        groups = {group: arms for group, arms in results.groups.items() if group in shown} or results.groups
        picture, grid = new_panels(4.2 * len(panels), 3.0 * len(groups) + 0.3, len(groups), len(panels))
        for row, (group, arms) in zip(grid, groups.items(), strict=True):
            for axes, panel in zip(row, panels, strict=True):
                over_rounds(axes, panel, {arm.shown: results.of(arm.name) for arm in arms}, labels, mark, xscale)
            row[0].set_title(fill(group, 60), loc="left", fontsize=10)
            row[-1].legend(fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
        return picture

    return figure
