"""Curves over the rounds: for each column of a view and each group, the seeds' means and intervals."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from fedappeal.record.columns import Column, shown_in
from fedappeal.views.comparison.groups import Group
from fedappeal.views.comparison.measures import Line, Lines, unmeasured
from fedappeal.views.comparison.result import Comparison
from fedappeal.views.comparison.statistics import Interval


@dataclass(frozen=True)
class Curve:
    """One group's curve, in the unit in which its column is shown.

    Attributes:
        label: the group's name among those of its task.
        place: the group's, from 0.
        rounds: of its points.
        means: over seeds; ``low`` and ``high``: the ends of their 95 % intervals, a share's within 0 and 1; None for
            a single seed.
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
        points = thinned({number: Interval.of(seeds) for number, seeds in values.items()}, most)
        lowest, highest = (0.0, 1.0) if column.is_share else (-math.inf, math.inf)
        intervals, scale = points.values(), column.scale
        low = [None if each.low is None else scale * max(each.low, lowest) for each in intervals]
        high = [None if each.high is None else scale * min(each.high, highest) for each in intervals]
        return cls(group.label, place, list(points), [scale * each.mean for each in intervals], low, high)


def panels(comparison: Comparison, view: str, most: int = 0) -> list[tuple[Column, list[Curve]]]:
    """Return each column of a view with the curves of the groups; arguments as in `Curve.of`."""
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
    return {number: [fmean(each) for each in seeds.values()] for number, seeds in sorted(values.items())}


def thinned(points: Mapping[int, Interval], most: int) -> dict[int, Interval]:
    """Return at most this number of intervals, 0: all; neighbours become their mean, at the last of them."""
    numbers, size = list(points), -(-len(points) // most) if most else 1
    if size <= 1:
        return dict(points)
    means = {}
    for start in range(0, len(numbers), size):
        part = [points[number] for number in numbers[start : start + size]]
        halves = [each.half for each in part if each.half is not None]
        half = fmean(halves) if len(halves) == len(part) else None
        last = numbers[min(start + size, len(numbers)) - 1]
        means[last] = Interval(fmean(each.mean for each in part), half, part[0].n)
    return means
