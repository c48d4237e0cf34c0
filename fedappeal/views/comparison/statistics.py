"""Means and paired differences over seeds, with 95 % intervals from Student's t distribution.

The interval of a mean share is Wilson's (Journal of the American Statistical Association 22, 1927, 209-212), which
stays within 0 and 1, with the t quantile and the effective number of examples that the spread over seeds gives, as
for proportions of clustered samples (Dean and Pagano, Journal of Survey Statistics and Methodology 3, 2015, 484-503).

A difference of shares lies between -1 and 1. Its t interval is cut there: the true mean is never in what is cut off,
so the interval covers it exactly as often (Mandelkern, Statistical Science 17, 2002, 149-172).

Numbers without spread have no interval; differences without spread have the p of the exact sign test.

Which differences are more than chance is said after Holm's correction over all that were tested (Scandinavian Journal
of Statistics 6, 1979, 65-70).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from statistics import fmean, stdev
from typing import Literal

from fedappeal.record.columns import Better

CONFIDENCE = 0.95
_EQUAL = 1e-9
"""Numbers that differ by less, relatively, have no spread: differences of equal size are rounded."""


def t_probability(angle: float, degrees: int) -> float:
    """Return P(|T| <= t) for ``t = sqrt(degrees) tan(angle)``.

    The sums of Abramowitz and Stegun, Handbook of Mathematical Functions, 26.7.3 and 26.7.4.

    Args:
        angle: in [0, pi/2].
        degrees: of freedom, a whole number, at least 1.
    """
    cosine = math.cos(angle)
    odd = degrees % 2
    term, total = (cosine, 0.0) if odd else (1.0, 0.0)
    for n in range(1 + odd, degrees, 2):  # n = 2, 4, ... or 1, 3, ...
        total += term
        term *= n / (n + 1) * cosine * cosine
    if odd:
        return 2 / math.pi * (angle + math.sin(angle) * total)
    return math.sin(angle) * total


@cache
def t_quantile(degrees: int, confidence: float = CONFIDENCE) -> float:
    """Return the t with ``P(|T| <= t) = confidence``.

    Raises:
        ValueError: fewer than one degree of freedom, or a confidence outside of (0, 1).
    """
    if degrees < 1 or not 0 < confidence < 1:
        raise ValueError(f"no t quantile for {degrees} degrees of freedom and confidence {confidence}")
    low, high = 0.0, math.pi / 2
    while low < (middle := (low + high) / 2) < high:  # until two neighbouring numbers are left
        if t_probability(middle, degrees) < confidence:
            low = middle
        else:
            high = middle
    return math.sqrt(degrees) * math.tan(high)


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p values by Holm's step-down correction, in their order."""
    adjusted, largest = [1.0] * len(p_values), 0.0
    for rank, place in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        largest = max(largest, (len(p_values) - rank) * p_values[place])
        adjusted[place] = min(1.0, largest)
    return adjusted


@dataclass(frozen=True)
class Interval:
    """A mean over seeds.

    Attributes:
        mean: the mean.
        low: lower end of its 95 % interval; None for one seed, without spread, or where one is not finite.
        high: upper end.
        n: number of seeds.
        is_share: whether it is of shares or of their differences, whose intervals lie unevenly around the mean.
    """

    mean: float
    low: float | None
    high: float | None
    n: int
    is_share: bool = False

    @classmethod
    def of(cls, values: Sequence[float], is_share: bool = False) -> "Interval":
        """Return mean and interval of at least one number; of shares Wilson's.

        See above; shares lie between 0 and 1.

        The mean of numbers that are not all finite is not finite, and has no interval; nor has that of equal ones.
        """
        n, finite = len(values), all(map(math.isfinite, values))
        mean = fmean(values) if finite else sum(values) / n
        if not finite or max(values) - min(values) <= _EQUAL * max(map(abs, values)):
            return cls(mean, None, None, n, is_share)
        half, spread = t_quantile(n - 1) * stdev(values) / math.sqrt(n), mean * (1 - mean)
        if not (is_share and spread > 0):
            return cls(mean, mean - half, mean + half, n, is_share)
        excess = half * half / spread  # t^2 over the effective number of examples
        centre = (mean + excess / 2) / (1 + excess)
        reach = math.sqrt(half * half + excess * excess / 4) / (1 + excess)
        return cls(mean, max(0.0, centre - reach), min(1.0, centre + reach), n, is_share)

    @property
    def half(self) -> float | None:
        """Half the interval's width; None without an interval."""
        return None if self.low is None or self.high is None else (self.high - self.low) / 2


Verdict = Literal["better", "worse", "higher", "lower", "level", "undecided", ""]


@dataclass(frozen=True)
class Difference:
    """A paired difference over the seeds that two groups share.

    Attributes:
        interval: of the differences, group less baseline.
        wins: seeds for which the group is better; None where neither way is.
        verdict: ``undecided`` where the interval holds 0, or seeds without spread are few; ``level`` where all that
            it holds is shown as 0, else which way the group differs; empty for a single seed.
        p: of the two-sided t test that the mean is 0, without spread of the sign test; None for a single seed.
    """

    interval: Interval
    wins: int | None
    verdict: Verdict
    p: float | None = None

    @classmethod
    def of(
        cls,
        group: Mapping[int, float],
        baseline: Mapping[int, float],
        better: Better,
        least: float = 0.0,
        of_shares: bool = False,
    ) -> "Difference | None":
        """Return the paired difference of two groups by seed; None without common seeds.

        Args:
            group: its numbers.
            baseline: those that it is compared with.
            better: which way is better.
            least: smaller differences are shown as 0.
            of_shares: whether the numbers lie between 0 and 1.
        """
        differences = [group[seed] - baseline[seed] for seed in sorted(group.keys() & baseline.keys())]
        if not differences:
            return None
        sign = -1.0 if better == "lower" else 1.0
        interval = Interval.of(differences)
        p = _p(interval)
        if of_shares and interval.low is not None and interval.high is not None:
            interval = replace(interval, low=max(-1.0, interval.low), high=min(1.0, interval.high), is_share=True)
        wins = sum(sign * difference > 0 for difference in differences) if better else None
        return cls(interval, wins, _verdict(interval, better, least), p)

    def corrected(self, p: float) -> "Difference":
        """Return the difference, ``undecided`` where a corrected p leaves it open which way it is."""
        is_open = p > 1 - CONFIDENCE and self.verdict not in ("", "level")
        return replace(self, verdict="undecided") if is_open else self

    @property
    def is_none(self) -> bool:
        """Whether the group's numbers are the baseline's."""
        return self.interval.mean == 0 and not self.interval.half


def _p(interval: Interval) -> float | None:
    if interval.n == 1 or not math.isfinite(interval.mean):
        return None
    if not interval.half:
        return _sign_test(interval.n) if interval.mean else 1.0
    t, degrees = abs(interval.mean) / interval.half * t_quantile(interval.n - 1), interval.n - 1
    return max(0.0, 1 - t_probability(math.atan(t / math.sqrt(degrees)), degrees))


def _sign_test(seeds: int) -> float:
    """Return p of the exact two-sided sign test where all seeds differ in one direction."""
    return 2.0 ** (1 - seeds)


def _verdict(interval: Interval, better: Better, least: float) -> Verdict:
    if interval.n == 1 or not math.isfinite(interval.mean):
        return ""
    if interval.low is None or interval.high is None:
        if _sign_test(interval.n) > 1 - CONFIDENCE:
            return "undecided"
    elif interval.low <= 0 <= interval.high:
        reach = max(-interval.low, interval.high)
        return "undecided" if reach and reach >= least else "level"
    if not interval.mean or abs(interval.mean) < least:
        return "level"
    above = interval.mean > 0
    if not better:
        return "higher" if above else "lower"
    return "better" if above == (better == "higher") else "worse"
