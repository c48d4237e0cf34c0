"""Curves over the rounds: the values of several seeds, and their intervals."""

import math
from collections.abc import Callable, Iterable
from statistics import fmean

from fedappeal.views.comparison.measures import Line, Lines, unmeasured


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
    found: dict[int, dict[int, list[float]]] = {}
    for seed, line in lines:
        value = of(line)
        if value is not None and math.isfinite(value) and int(line["round"]) < lost:
            found.setdefault(int(line["round"]), {}).setdefault(seed, []).append(value)
    return {number: [fmean(values) for values in seeds.values()] for number, seeds in sorted(found.items())}
