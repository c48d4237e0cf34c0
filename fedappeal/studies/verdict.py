"""What came out of a paper's claim, in plain words: seeds for which it holds, by how much, the paper's own number."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from fedappeal.studies.experiment import (
    Claim,
    Experiment,
    Missing,
    Number,
    Numbers,
    Results,
    Unmeasured,
)
from fedappeal.system.wording import counted
from fedappeal.views.comparison.statistics import Interval

Word = Literal["yes", "no", "level", "unmeasured"]


@dataclass(frozen=True)
class Verdict:
    """A claim with what came out of it.

    Attributes:
        claim: the claim.
        margins: its margin by seed, for the seeds that have the numbers.
        unmeasured: seeds whose models diverged, never got there, or whose runs failed.
        paper: the margin that the paper's own numbers give; None where it does not print them.
    """

    claim: Claim
    margins: tuple[float, ...]
    unmeasured: int
    paper: float | None

    @property
    def held(self) -> int:
        """Seeds for which it holds."""
        return sum(map(self._holds, self.margins))

    def _holds(self, margin: float) -> bool:
        return margin >= 0 if self.claim.inclusive else margin > 0

    @property
    def gap(self) -> Interval | None:
        """The mean margin with its interval; None without a seed that has a finite one."""
        finite = [margin for margin in self.margins if math.isfinite(margin)]
        return Interval.of(finite) if finite else None

    @property
    def word(self) -> Word:
        """Whether it holds: level where the interval of the mean margin holds 0.

        A seed without a number, or with an infinite margin, is not in the interval. It cannot make a claim hold or
        fail, but it keeps it from that, unless its margin is infinite in the same direction.
        """
        if not self.margins:
            return "unmeasured"
        gap = self.gap
        if gap is None or gap.low is None or gap.high is None:  # nothing to tell noise by
            finite = [margin for margin in self.margins if math.isfinite(margin)] or self.margins
            word: Word = "yes" if all(map(self._holds, finite)) else "no"
        elif gap.low > 0 or (self.claim.inclusive and gap.low >= 0):
            word = "yes"
        else:
            word = "no" if gap.high < 0 or gap.low == gap.high == 0 else "level"
        ways = {"yes": (math.inf,), "no": (-math.inf,)}.get(word, ())
        agree = all(margin in ways for margin in self.margins if not math.isfinite(margin))
        return word if agree and not self.unmeasured else "level"

    @property
    def apart(self) -> bool | None:
        """Whether the paper's own margin is outside of the interval; None where one of them is missing."""
        gap = self.gap
        if self.paper is None or gap is None or gap.low is None or gap.high is None:
            return None
        return not gap.low <= self.paper <= gap.high

    def words(self) -> str:
        """Return it as a sentence without its end: ``no, 1 of 5 seeds, gap -1.2 (95 % interval ...) against +27``."""
        if not self.margins:
            return f"not measured: {counted(self.unmeasured, 'seed')} without a number"
        parts = [self.word, f"{self.held} of {counted(len(self.margins), 'seed')}"]
        if self.unmeasured:
            parts[-1] += f" ({self.unmeasured} without a number)"
        if self.claim.among > 2:
            parts[-1] += f" (by chance 1 in {self.claim.among})"
        if gap := self.gap:
            parts.append(self._gap(gap))
        return ", ".join(parts)

    def _gap(self, gap: Interval) -> str:
        unit, largest = self.claim.unit, max(map(abs, (gap.mean, gap.half or 0.0, self.paper or 0.0)))
        digits = 1 if unit == "points" or largest >= 10 else 2 if largest >= 0.05 else 4
        text = f"gap {_signed(gap.mean, digits)}" + (f" {unit}" if unit else "")
        if gap.low is not None and gap.high is not None:
            text += f" (95 % interval {_signed(gap.low, digits)} to {_signed(gap.high, digits)})"
        return text + (f" against the paper's {_signed(self.paper, digits)}" if self.paper is not None else "")


def _signed(value: float, digits: int) -> str:
    """Return a number with its sign, which a small one keeps when it is rounded to 0."""
    return f"{value:+.{digits}f}" if value else f"{0:.{digits}f}"


def verdicts(results: Results) -> list[Verdict]:
    """Return the verdicts of all claims that were checked, those without a group first."""
    seeds = sorted({run.seed for run in results.runs})
    by_group: dict[str, list[Verdict]] = {}
    for claim in results.experiment.claims:
        margins, unmeasured, missing = [], 0, 0
        for seed in seeds:
            try:
                margins.append(claim.margin(results.of_seed(seed)))
            except Missing:
                missing += 1
            except Unmeasured:
                unmeasured += 1
        if margins or unmeasured:
            paper = papers_margin(claim, results.experiment)
            # Other seeds have these rows: this one's run failed.
            by_group.setdefault(claim.group, []).append(Verdict(claim, tuple(margins), unmeasured + missing, paper))
    groups = sorted(by_group.items(), key=lambda item: item[0] != "")
    return [verdict for _, group in groups for verdict in group]


def papers_margin(claim: Claim, experiment: Experiment) -> float | None:
    """Return a claim's margin by the paper's own numbers; None where it does not print all that it needs."""
    try:
        return claim.margin(_papers(experiment))
    except (Missing, Unmeasured):
        return None


def _papers(experiment: Experiment) -> Numbers:
    arms = {arm.name: arm.paper for arm in experiment.arms}
    printed_as = {measure.key: measure.beside or measure.key for measure in experiment.measures}

    def number(arm: str, key: str) -> float:
        if arm not in arms or printed_as[key] not in arms[arm]:
            raise Missing(f"{arm}: {key}")
        value: Number = arms[arm][printed_as[key]]
        return float(value[0] if isinstance(value, tuple) else value)

    return number


def summary(outcomes: Sequence[Verdict]) -> str:
    """Return how many of the claims hold, in a sentence; empty where none was checked."""
    if not outcomes:
        return ""
    words = [verdict.word for verdict in outcomes]
    parts = [f"{words.count('yes')} {'holds' if words.count('yes') == 1 else 'hold'}"]
    level = words.count("level")
    parts.append(f"{level} {'is' if level == 1 else 'are'} level (within noise, or a seed has no number)")
    parts.append(f"{words.count('no')} {'does' if words.count('no') == 1 else 'do'} not hold")
    if none := words.count("unmeasured"):
        parts.append(f"{none} could not be measured")
    text = f"Of {counted(len(outcomes), 'claim')} checked, {', '.join(parts)}."
    if apart := [verdict.apart for verdict in outcomes if verdict.apart is not None]:
        text += f" The paper's own gap is outside of our interval in {sum(apart)} of {len(apart)}."
    return text
