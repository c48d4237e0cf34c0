"""Verdicts: what paired seeds say of a claim, by scipy's tests and Holm's correction, in one of four words.

A method is compared with each baseline on its own, on the seeds that both have. Runs that live or freeze are counted
(McNemar's exact test); other margins are tested by Student's t, or, where Shapiro and Wilk's test finds them not
normal, by sign flips with a bootstrap interval. Holm's correction is over all claims of a page.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Literal

from pydantic import SerializerFunctionWrapHandler, model_serializer

from fedappeal.studies.data_file import Part
from fedappeal.studies.experiment import (
    OWN,
    Claim,
    Contrast,
    Experiment,
    Missing,
    NotRunYet,
    Numbers,
    Results,
    Unmeasured,
)
from fedappeal.system.packages import require
from fedappeal.system.wording import plural
from fedappeal.views.comparison.statistics import holm

Word = Literal["reproduced", "same direction, smaller", "not reproduced", "undecided"]
WORDS: tuple[Word, ...] = ("reproduced", "same direction, smaller", "not reproduced", "undecided")

LEVEL = 0.05
"""Significance level, of intervals too."""
POWER = 0.8
"""Power of the number of seeds that an undecided claim needs."""
RELEVANT = 0.5
"""Share of the paper's gap: where the interval ends below it, the claim is not reproduced."""
MOST_SEEDS = 100
"""The largest number of seeds that is stated."""
_NUMBERS = range(2, MOST_SEEDS + 1)
SAME = 1e-9
"""Margins that are no farther apart are equal."""


class Verdict(Part):
    """A claim and its outcome, as in the JSON beside a page.

    Attributes:
        key: of the claim, as `Claim.key`.
        claim: its text.
        group: of rows that it is checked for.
        whose: who claims it.
        unit: of the margin.
        inclusive: whether it holds with a margin of 0 too.
        contrast: what is compared; None: of more than two numbers.
        margins: by seed, above 0 where it holds.
        unmeasured: seeds without a number.
        lived: of an event, the runs of both rows that have it.
        paper: the margin of the paper's own numbers; None where it does not print them.
        test: how p was found; empty: no test, as all margins are equal, or there is one.
        mean: of the margins.
        low: lower end of the mean's 95 % interval; None: there is none.
        high: upper end.
        p: of a margin other than 0, two-sided.
        adjusted: p by Holm's correction over the page.
        word: the verdict.
        needs: number of seeds that an undecided claim needs; None: more than `MOST_SEEDS`, or not known.
    """

    key: str = ""
    claim: str
    group: str
    whose: Literal["the paper's", "ours"]
    unit: str
    inclusive: bool
    contrast: Contrast | None
    margins: Mapping[int, float]
    unmeasured: int
    lived: tuple[int, int] | None = None
    paper: float | None
    test: Literal["", "t", "sign flips", "McNemar"] = ""
    mean: float | None = None
    low: float | None = None
    high: float | None = None
    p: float | None = None
    adjusted: float | None = None
    word: Word = "undecided"
    needs: int | None = None

    @model_serializer(mode="wrap")
    def _without_empty_key(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {name: value for name, value in dump(self).items() if value or name != "key"}

    @property
    def here(self) -> str:
        """Our margin with its interval, or the numbers of runs that live."""
        seeds = len(self.margins)
        if self.mean is None:
            return "no number"
        if self.lived is not None:
            return f"{self.lived[0]}:{self.lived[1]} of {seeds} live"
        if self.test == "McNemar":
            ahead, behind = (list(self.margins.values()).count(side) for side in (1, -1))
            return f"{ahead}:{behind} of {seeds} seeds"
        digits = self._digits
        text = f"{_with_sign(self.mean, digits)}"
        if self.low is not None and self.high is not None and self.test:
            text += f" [{_with_sign(self.low, digits)}, {_with_sign(self.high, digits)}]"
        return text + (f" ({self.unmeasured} of {seeds + self.unmeasured} without)" if self.unmeasured else "")

    @property
    def papers(self) -> str:
        """The paper's own margin; empty if it is not printed."""
        return "" if self.paper is None else _with_sign(self.paper, self._digits)

    @property
    def _digits(self) -> int:
        largest = max(abs(value or 0.0) for value in (self.mean, self.low, self.high, self.paper))
        return 1 if self.unit == "points" or largest >= 10 else 2 if largest >= 0.05 else 4

    @property
    def words(self) -> str:
        """The verdict's word, with the seeds that an undecided one needs."""
        if self.word != "undecided" or len(self.margins) < 2 or self.unmeasured:
            return self.word
        needs = f"about {self.needs}" if self.needs else f"over {MOST_SEEDS}"
        return f"{self.word} (needs {needs} seeds)"


def _with_sign(value: float, digits: int) -> str:
    """Return a number with its sign, which small ones keep when rounded to 0."""
    return f"{value:+.{digits}f}" if value else f"{0:.{digits}f}"


def check_statistics() -> None:
    """Check that verdicts can be found.

    Raises:
        ConfigError: scipy is not installed; names the extra.
    """
    require("verdicts need {}", "plots", "scipy")


def verdicts(results: Results, growing: bool = False) -> list[Verdict]:
    """Return the verdicts of all checked claims, those without a group first.

    Args:
        results: what came out.
        growing: whether the study grows by groups and seeds: Holm's correction is over the claims of a group, and a
            seed of which a row has no run does not count.

    Raises:
        ConfigError: scipy is not installed.
    """
    check_statistics()
    seeds = sorted({run.seed for run in results.runs})
    numbers = {seed: results.of_seed(seed) for seed in seeds}
    tested = [v for claim in results.experiment.claims if (v := _test(claim, results.experiment, numbers, growing))]
    tested.sort(key=lambda verdict: verdict.group != "")
    if not growing:
        return _with_holm(tested)
    groups = dict.fromkeys(verdict.group for verdict in tested)
    return [v for group in groups for v in _with_holm([verdict for verdict in tested if verdict.group == group])]


def _test(claim: Claim, experiment: Experiment, numbers: Mapping[int, Numbers], growing: bool) -> Verdict | None:
    """Return a claim's verdict; None if no seed has its rows."""
    margins, unmeasured, missing = dict[int, float](), 0, 0
    for seed, number in numbers.items():
        try:
            margin = claim.margin(number)
            margins[seed] = (margin > 0) - (margin < 0) if claim.by_side else margin
        except Unmeasured:
            unmeasured += 1
        except NotRunYet:
            continue
        except Missing:
            missing += not growing
    if not margins and not unmeasured:
        return None
    contrast = claim.margin if isinstance(claim.margin, Contrast) else None
    event = contrast.event if contrast else None
    untested = Verdict(
        key=claim.key,
        claim=claim.text,
        group=claim.group,
        whose="ours" if claim.ours or experiment.source == OWN else "the paper's",
        unit=claim.unit,
        inclusive=claim.inclusive,
        contrast=contrast,
        margins=margins,
        unmeasured=unmeasured + missing,
        paper=None if event is not None else papers_margin(claim, experiment),
    )
    if contrast and event is not None and isinstance(contrast.other, tuple) and margins:
        sides = [sum(numbers[seed](*side) >= event for seed in margins) for side in (contrast.one, contrast.other)]
        return untested.model_copy(update={"lived": (sides[0], sides[1]), **_of_events(list(margins.values()))})
    if claim.by_side and margins:
        return untested.model_copy(update=_of_events(list(margins.values())))
    return untested.model_copy(update=_of_numbers(list(margins.values())))


def _of_events(margins: Sequence[float]) -> dict[str, object]:
    """Return McNemar's exact test of pairs.

    It is the sign test; 1 and -1 where one alone is ahead.
    """
    return {"test": "McNemar", "mean": sum(margins) / len(margins), "p": _events_p(margins, len(margins))}


def _of_numbers(margins: Sequence[float]) -> dict[str, object]:
    """Return the mean with interval and p, without a test for equal margins."""
    import numpy as np
    from scipy import stats

    if not margins:
        return {}
    mean = math.fsum(margins) / len(margins)
    if max(margins) - min(margins) < SAME:
        ends = {"low": mean, "high": mean} if len(margins) > 1 else {}
        return {"mean": mean, **ends}
    if len(margins) < 3 or stats.shapiro(margins).pvalue >= LEVEL:
        by_t = stats.ttest_1samp(margins, 0.0)
        low, high = by_t.confidence_interval(1 - LEVEL)
        return {"test": "t", "mean": mean, "low": float(low), "high": float(high), "p": float(by_t.pvalue)}
    # Exact up to 16 seeds; beyond, as many random flips.
    flips = stats.permutation_test((margins,), np.mean, permutation_type="samples", n_resamples=2**16, rng=0)
    ends = stats.bootstrap((margins,), np.mean, confidence_level=1 - LEVEL, rng=0).confidence_interval
    interval = {"low": float(ends.low), "high": float(ends.high)}
    return {"test": "sign flips", "mean": mean, **interval, "p": float(flips.pvalue)}


def _with_holm(outcomes: Sequence[Verdict]) -> list[Verdict]:
    """Return the verdicts with Holm's p and their words."""
    tested = [verdict.p for verdict in outcomes if verdict.p is not None]
    of_tested = iter(holm(tested))
    corrected = []
    for verdict in outcomes:
        adjusted = None if verdict.p is None else next(of_tested)
        verdict = verdict.model_copy(update={"adjusted": adjusted})
        word = _word(verdict)
        needs = _seeds_needed(verdict, LEVEL / len(tested)) if word == "undecided" and verdict.p is not None else None
        corrected.append(verdict.model_copy(update={"word": word, "needs": needs}))
    return corrected


def _word(verdict: Verdict) -> Word:
    mean, high, paper = verdict.mean, verdict.high, verdict.paper
    if mean is None or verdict.unmeasured or len(verdict.margins) < 2:
        return "undecided"
    if verdict.p is None:  # the same in every seed
        holds = mean > 0 or (verdict.inclusive and mean > -SAME)
        fails = not holds
    else:
        decided = (verdict.adjusted or 0.0) <= LEVEL
        holds, fails = decided and mean > 0, decided and mean < 0
    if holds:
        smaller = paper is not None and high is not None and high < paper
        return "same direction, smaller" if smaller else "reproduced"
    elsewhere = paper is not None and paper > 0 and high is not None and high < RELEVANT * paper
    return "not reproduced" if fails or elsewhere else "undecided"


def _seeds_needed(verdict: Verdict, level: float) -> int | None:
    """Return how many seeds would tell such a margin from 0."""
    margins = list(verdict.margins.values())
    if verdict.test == "McNemar":
        return next((n for n in _NUMBERS if _events_p(margins, n) <= level), None)
    fewest = 1 - math.log2(level) if verdict.test == "sign flips" else 2  # with which such a p can be reached at all
    from scipy import stats

    effect = abs(verdict.mean or 0.0) / float(stats.tstd(margins))

    def power(n: int) -> float:
        return float(1 - stats.nct.cdf(stats.t.ppf(1 - level / 2, n - 1), n - 1, effect * math.sqrt(n)))

    return next((n for n in _NUMBERS if n >= fewest and power(n) >= POWER), None)


def _events_p(margins: Sequence[float], seeds: int) -> float:
    """Return McNemar's p for a number of seeds with such shares."""
    ahead, behind = (round(margins.count(side) * seeds / len(margins)) for side in (1, -1))
    return _sign_p(ahead, behind) if ahead + behind else 1.0


@cache
def _sign_p(ahead: int, behind: int) -> float:
    """Return the sign test's two-sided p, cached.

    A page asks for few different ones thousands of times.
    """
    from scipy import stats

    return float(stats.binomtest(ahead, ahead + behind).pvalue)


def papers_margin(claim: Claim, experiment: Experiment) -> float | None:
    """Return a claim's margin by the paper's numbers; None if one is not printed."""
    arms = {arm.name: arm for arm in experiment.arms}
    measures = {measure.key: measure for measure in experiment.measures}

    def number(arm: str, key: str) -> float:
        value = arms[arm].printed(measures[key]) if arm in arms else None
        if value is None:
            raise Missing(f"{arm}: {key}")
        return value

    try:
        return claim.margin(number)
    except (Missing, Unmeasured):
        return None


def leading(outcomes: Sequence[Verdict]) -> list[Verdict]:
    """Return a page's leading verdicts: of the first group with the paper's claims.

    Else of ours.
    """
    papers = [verdict for verdict in outcomes if verdict.whose == "the paper's"] or list(outcomes)
    return [verdict for verdict in papers if verdict.group == papers[0].group]


def summary(outcomes: Sequence[Verdict]) -> str:
    """Return a page's verdict in a sentence, on its leading claims, then all.

    A group is named beside others.
    """
    if not outcomes:
        return "**No verdict**: this page checks no claim."
    first = leading(outcomes)
    words = Counter(verdict.word for verdict in first)
    most = max(WORDS, key=lambda word: words[word])
    share = words[most] / len(first)
    headline = most.capitalize() if share == 1 else f"Mostly {most}" if share > 0.5 else "Mixed"
    who = "our" if first[0].whose == "ours" else "the paper's"
    where = f" under '{first[0].group}'" if first[0].group and len(outcomes) > len(first) else ""
    text = f"**{headline}**: of {who} {plural(len(first), 'claim')}{where} {_counts(words)}"
    if len(outcomes) > len(first):
        text += f"; of all {len(outcomes)} claims of this page {_counts(Counter(v.word for v in outcomes))}"
    return text + "."


def _counts(words: Mapping[Word, int]) -> str:
    return ", ".join(f"{words[word]} {word}" for word in WORDS if words[word])
