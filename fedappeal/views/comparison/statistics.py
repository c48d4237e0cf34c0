"""Means and paired differences over seeds, with 95 % intervals from Student's t distribution."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import fmean, stdev
from typing import Literal

from fedappeal.record.columns import Better

CONFIDENCE = 0.95


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


@dataclass(frozen=True)
class Interval:
    """A mean over seeds.

    Attributes:
        mean: the mean.
        half: half the width of its 95 % interval; None for a single seed, or a number that is not finite.
        n: number of seeds.
    """

    mean: float
    half: float | None
    n: int

    @classmethod
    def of(cls, values: Sequence[float]) -> "Interval":
        """Return mean and interval of at least one number; ``mean ± t s / sqrt(n)``.

        Where a number is not finite, neither is the mean, and there is no interval.
        """
        n = len(values)
        if not all(map(math.isfinite, values)):
            return cls(sum(values) / n, None, n)
        half = t_quantile(n - 1) * stdev(values) / math.sqrt(n) if n > 1 else None
        return cls(fmean(values), half, n)

    @property
    def low(self) -> float | None:
        """Lower end of the interval."""
        return None if self.half is None else self.mean - self.half

    @property
    def high(self) -> float | None:
        """Upper end of the interval."""
        return None if self.half is None else self.mean + self.half


Verdict = Literal["better", "worse", "higher", "lower", "level", ""]


@dataclass(frozen=True)
class Difference:
    """A paired difference over the seeds that two groups share.

    Attributes:
        interval: of the differences, group less baseline.
        wins: seeds for which the group is better; None where neither way is.
        verdict: ``level`` where the interval holds 0 or the difference is too small to be shown, else which way the
            group differs; empty without interval.
    """

    interval: Interval
    wins: int | None
    verdict: Verdict

    @classmethod
    def of(
        cls, group: Mapping[int, float], baseline: Mapping[int, float], better: Better, least: float = 0.0
    ) -> "Difference | None":
        """Return the difference of two groups' numbers by seed; None without a common seed.

        Args:
            group: its numbers.
            baseline: those that it is compared with.
            better: which way is better.
            least: smaller differences are shown as 0.
        """
        differences = [group[seed] - baseline[seed] for seed in sorted(group.keys() & baseline.keys())]
        if not differences:
            return None
        sign = -1.0 if better == "lower" else 1.0
        interval = Interval.of(differences)
        wins = sum(sign * difference > 0 for difference in differences) if better else None
        return cls(interval, wins, _verdict(interval, better, least))


def _verdict(interval: Interval, better: Better, least: float) -> Verdict:
    if interval.half is None:
        return ""
    if abs(interval.mean) <= interval.half or abs(interval.mean) < least:
        return "level"
    above = interval.mean > 0
    if not better:
        return "higher" if above else "lower"
    return "better" if above == (better == "higher") else "worse"
