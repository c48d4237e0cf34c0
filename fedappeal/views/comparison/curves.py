"""Curves over the rounds, for each column and group, and their picture.

The picture has a panel a column.
"""

import math
import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from fedappeal.record.columns import PICTURE, Column, shown_in
from fedappeal.settings.config import ConfigError
from fedappeal.views.comparison.measures import COLOURS, DASHES, Line, Lines, check_plots, new_panels, unmeasured
from fedappeal.views.comparison.result import Comparison, Group
from fedappeal.views.comparison.statistics import Interval

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Curve:
    """One group's curve, in the unit in which its column is shown.

    Attributes:
        label: the group's name among those of its task.
        place: the group's, from 0.
        rounds: of its points.
        means: over seeds; ``low`` and ``high``: the ends of their 95 % intervals, a share's within 0 and 1, the
            mean without spread; None for a single seed.
    """

    label: str
    place: int
    rounds: Sequence[int]
    means: Sequence[float]
    low: Sequence[float | None]
    high: Sequence[float | None]

    @classmethod
    def of(cls, group: Group, place: int, column: Column, most: int = 0) -> "Curve":
        """Return a column's curve of a group; ``most``: points, 0: all."""
        values = by_round([(run.seed, run.lines) for run in group.runs], column.value)
        every = [(number, Interval.of(seeds, column.is_share)) for number, seeds in values.items()]
        points = dict(every[place] for place in thin_indices([interval.mean for _, interval in every], most))
        intervals, scale = points.values(), column.scale
        ends = [(i.mean, i.mean) if i.low is None and i.n > 1 else (i.low, i.high) for i in intervals]
        low, high = ([None if (end := pair[side]) is None else scale * end for pair in ends] for side in (0, 1))
        return cls(group.label, place, list(points), [scale * interval.mean for interval in intervals], low, high)


def panels(comparison: Comparison, view: str, most: int = 0) -> list[tuple[Column, list[Curve]]]:
    """Return a view's columns, each with the groups' curves.

    Arguments as in `Curve.of`.
    """
    return [
        (column, [Curve.of(group, place, column, most) for place, group in enumerate(comparison.groups)])
        for column in shown_in(view, comparison.metric)
    ]


def by_round(histories: Iterable[tuple[int, Lines]], of: Callable[[Line], float | None]) -> dict[int, list[float]]:
    """Return the seeds' finite values by round, in the order of the rounds.

    Rounds that not all runs have (one ended early) hold those that have them. They end where a run's model diverged:
    the others' mean would no longer be of the same runs.

    Args:
        histories: seed and history of each run; runs of one seed count as one, by their mean.
        of: the value of one round.
    """
    lines = [(seed, line) for seed, history in histories for line in history]
    lost = min((int(line["round"]) for _, line in lines if unmeasured(line)), default=math.inf)
    values: dict[int, dict[int, list[float]]] = {}
    for seed, line in lines:
        value = of(line)
        if value is not None and math.isfinite(value) and int(line["round"]) < lost:
            values.setdefault(int(line["round"]), {}).setdefault(seed, []).append(value)
    return {number: [fmean(numbers) for numbers in seeds.values()] for number, seeds in sorted(values.items())}


def thin_indices(values: Sequence[float], most: int) -> list[int]:
    """Return the indices of at most ``most`` values that keep every spike.

    0: all.

    Of each of equally long stretches the lowest and the highest value stay, and the first and the last of all.
    """
    places = range(len(values))
    if not most or len(values) <= most:
        return list(places)
    size = -(-len(values) // (most // 2 - 1))
    places_kept = {places[0], places[-1]}
    for stretch in (places[start : start + size] for start in places[::size]):
        places_kept |= {min(stretch, key=values.__getitem__), max(stretch, key=values.__getitem__)}
    return sorted(places_kept)


_ENDINGS = (".png", ".svg")
_LEGEND = 110
"""Characters of the legend's lines."""
_LINE = 0.24
"""Height of one of them, in inches."""
BAND = "lines: mean over seeds; bands: 95 % interval (Student's t; of shares Wilson's)"


def check_picture(path: Path) -> None:
    """Check that a picture can be drawn into a file.

    Raises:
        ConfigError: another ending, or matplotlib is not installed.
    """
    if path.suffix not in _ENDINGS:
        raise ConfigError(f"plot = '{path}' is not allowed: a file that ends in {' or '.join(_ENDINGS)}")
    check_plots()


def draw_comparison(comparisons: Sequence[Comparison]) -> "Figure":
    """Return a figure: GM-Appeal, the metric, participation and loss of each task, in four panels."""
    labels = list(dict.fromkeys(group.label for comparison in comparisons for group in comparison.groups))
    shown = [textwrap.fill(label, _LEGEND) for label in labels]
    columns = max(1, min(len(shown), _LEGEND // (8 + max(len(line) for line in shown))))
    legend_lines = sum(text.count("\n") + 1 for text in shown) / columns + 2
    charts = [panels(comparison, PICTURE) for comparison in comparisons]
    rows = -(-len(charts[0]) // 2)
    height = 3 * rows * len(comparisons) + _LINE * legend_lines
    figure, grid = new_panels(12, height, rows * len(comparisons), 2)
    for row, (comparison, columns_shown) in enumerate(zip(comparisons, charts, strict=True)):
        where = f"{comparison.baseline.task}: " if len(comparisons) > 1 else ""
        for axes, (column, curves) in zip(grid[rows * row : rows * (row + 1)].flatten(), columns_shown, strict=False):
            for curve in curves:
                _draw(axes, curve, column, labels.index(curve.label))
            axes.set(xlabel="round", ylabel=where + column.title)
            axes.locator_params(axis="x", integer=True)
    handles: dict[str, Artist] = {}
    for axes in grid.flatten():
        handles |= {name: handle for handle, name in zip(*axes.get_legend_handles_labels(), strict=True)}
    several = any(len(group.seeds) > 1 for comparison in comparisons for group in comparison.groups)
    figure.legend(
        [handles[label] for label in labels],
        shown,
        loc="outside lower center",
        ncols=columns,
        frameon=False,
        title=BAND if several else "one seed: no bands",
    )
    return figure


def _draw(axes: "Axes", curve: Curve, column: Column, place: int) -> None:
    colour, dashes = COLOURS[place % len(COLOURS)], DASHES[place % len(DASHES)]
    marker = "o" if len(curve.rounds) == 1 else ""  # no line goes through a single round
    axes.plot(
        curve.rounds, curve.means, marker=marker, color=colour, linestyle=dashes, linewidth=1.4, label=curve.label
    )
    points = zip(curve.rounds, curve.low, curve.high, strict=True)
    bands = [(n, low, high) for n, low, high in points if low is not None and high is not None]
    rounds, low, high = zip(*bands, strict=True) if bands else ((), (), ())
    axes.fill_between(rounds, low, high, color=colour, alpha=0.15, linewidth=0)
    if column.is_share:  # a line that is level at its highest would get as much room above it as below
        bottom, top = axes.get_ylim()
        axes.set_ylim(max(bottom, -0.02 * column.scale), min(top, 1.02 * column.scale))
