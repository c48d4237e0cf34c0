"""A claim's verdict, against numbers worked out by hand."""

import sys
from pathlib import Path
from typing import Any

import pytest

from fedappeal.settings.config import ConfigError
from fedappeal.studies.experiment import Arm, Claim, Contrast, Experiment, Results, RunResult
from fedappeal.studies.verdict import Verdict, leading, papers_margin, summary, verdicts
from fedappeal.views.comparison.measures import Measure, last

OVER = Contrast(("ours", "x"), ("other", "x"))


def of(*margins: float | None, paper: float | None = None, **fields: Any) -> Verdict:
    """The verdict on a claim that ours is ahead by these margins, a seed each; None: ours has no number."""
    (verdict,) = several([margins], paper=paper, **fields)
    return verdict


def several(rows: list[tuple[float | None, ...]], paper: float | None = None, **fields: Any) -> list[Verdict]:
    printed = {} if paper is None else {"x": paper}
    arms = [Arm("other", {}, {} if paper is None else {"x": 0.0})]
    arms += [Arm(f"ours{n or ''}", {}, printed) for n in range(len(rows))]
    margins = [Contrast((arm.name, "x"), ("other", "x"), event=fields.pop("event", None)) for arm in arms[1:]]
    claims = tuple(Claim(f"claim {n}", margin, **fields) for n, margin in enumerate(margins))
    measure = Measure("x", "x", last("x"))
    experiment = Experiment("one", "One", "P", tuple(arms), measures=(measure,), claims=claims)
    runs = [RunResult(arms[0], seed, (), Path(), {"x": 0.0}) for seed in range(len(rows[0]))]
    runs += [
        RunResult(arm, seed, (), Path(), {"x": value})
        for arm, row in zip(arms[1:], rows, strict=True)
        for seed, value in enumerate(row)
    ]
    return verdicts(Results(experiment, tuple(runs)))


@pytest.mark.parametrize(
    ("margins", "paper", "word"),
    [
        ((2.0, 2.5, 3.0), None, "reproduced"),  # 2.5 -+ 4.303 * 0.5 / sqrt(3) = 1.26 to 3.74
        ((2.0, 2.5, 3.0), 3.7, "reproduced"),
        ((2.0, 2.5, 3.0), 3.8, "same direction, smaller"),
        ((-2.0, -2.5, -3.0), None, "not reproduced"),
        ((1.0, 2.0, 3.0), None, "undecided"),  # 2 -+ 2.48
        ((1.0, 2.0, 3.0), 8.9, "undecided"),  # half of 8.9 is below 4.48
        ((1.0, 2.0, 3.0), 9.1, "not reproduced"),
        ((1.0, 1.0, 1.0), None, "reproduced"),
        ((1.0, 1.0, 1.0), 2.0, "same direction, smaller"),
        ((0.0, 0.0, 0.0), None, "not reproduced"),
        ((1.0,), None, "undecided"),
        ((2.0, 2.5, 3.0, None), None, "undecided"),  # a seed without a number keeps it from a verdict
        ((None, None), None, "undecided"),
    ],
)
def test_the_four_words(margins: tuple[float | None, ...], paper: float | None, word: str) -> None:
    assert of(*margins, paper=paper).word == word


def test_a_run_that_is_still_to_be_made_keeps_no_claim_from_its_verdict_as_a_missing_one_does() -> None:
    one, other = Arm("one", {}, {}), Arm("other", {}, {})
    claim = Claim("one over other", Contrast(("one", "x"), ("other", "x")))
    experiment = Experiment("e", "E", "P", (one, other), measures=(Measure("x", "x", last("x")),), claims=(claim,))
    runs = [RunResult(one, seed, (), Path(), {"x": 2.0 + seed / 2}) for seed in range(3)]
    runs += [RunResult(other, seed, (), Path(), {"x": 0.0}) for seed in range(4)]
    (complete,) = verdicts(Results(experiment, tuple(runs), waiting=frozenset({("one", 3)})))
    assert (complete.word, sorted(complete.margins)) == ("reproduced", [0, 1, 2])
    (lacking,) = verdicts(Results(experiment, tuple(runs)))
    assert (lacking.word, lacking.unmeasured) == ("undecided", 1)


def test_a_claim_that_holds_at_its_bound_in_every_seed() -> None:
    assert of(0.0, 0.0, inclusive=True).word == "reproduced"
    assert of(-1.0, -1.0, inclusive=True).word == "not reproduced"


def test_the_words_and_numbers_by_hand() -> None:
    """Deviations -3, 3, -2, 2, 0: variance 26 / 4, and 2.776 * sqrt(6.5 / 5) = 3.166."""
    verdict = of(-4.2, 1.8, -3.2, 0.8, -1.2, paper=27.0, unit="points")
    assert (verdict.test, verdict.here, verdict.papers) == ("t", "-1.2 [-4.4, +2.0]", "+27.0")
    assert verdict.words == "not reproduced"
    assert of(1.0, 2.0, 3.0).words == "undecided (needs about 5 seeds)"
    assert of(-1.0, 1.01).words == "undecided (needs over 100 seeds)"
    assert of(None, None).here == "no number"
    assert of(2.0, None, 3.0).here == "+2.50 [-3.85, +8.85] (1 of 3 without)"


def test_runs_that_live_are_counted_by_mcnemar() -> None:
    """Four pairs differ, all one way: 2 / 2^4. With 0.8 n of n pairs it takes 2^(1 - d) <= 0.05, d = 6: n = 7."""
    verdict = of(70.0, 57.0, 70.0, 0.0, 70.0, event=20.0)
    assert (verdict.test, verdict.lived, verdict.p) == ("McNemar", (4, 0), 0.125)
    assert (verdict.here, verdict.words) == ("4:0 of 5 live", "undecided (needs about 7 seeds)")
    assert of(*[70.0] * 6, event=20.0).word == "reproduced"  # 2 / 2^6
    assert of(*[0.0] * 6, event=20.0).p == 1.0


def test_margins_that_are_not_normal_are_flipped_and_bootstrapped() -> None:
    """Of 2^5 flips of 0, 0, 0, 0 and 70 half are as large one way, half the other."""
    verdict = of(0.0, 0.0, 0.0, 0.1, 70.0)
    assert verdict.test == "sign flips"
    assert verdict.p == 0.5  # flips of 0.1 and 70: 4 sums, of which the largest is as large; two-sided
    assert verdict.low is not None
    assert verdict.high is not None
    assert 0.0 <= verdict.low < 14.02 < verdict.high <= 70.0


def test_holm_is_over_all_claims_of_a_page_or_of_a_group() -> None:
    """p of 2.5 over its error, 8.66 with two degrees of freedom, is 0.0131."""
    first, second, third = several([(2.0, 2.5, 3.0), (2.0, 2.5, 3.0), (1.0, 2.0, 3.0)])
    assert first.p == pytest.approx(0.0131, abs=1e-4)
    assert first.adjusted == second.adjusted == pytest.approx(3 * 0.0131, abs=2e-4)
    assert third.adjusted == pytest.approx(0.0742, abs=1e-4)
    assert [first.word, third.word] == ["reproduced", "undecided"]
    assert several([(2.0, 2.5, 3.0)] * 4)[0].word == "undecided"  # 4 * 0.0131


def test_a_page_begins_with_the_papers_claims() -> None:
    found = [
        verdict.model_copy(update={"group": group, "whose": whose})
        for verdict, group, whose in (
            (of(2.0, 2.5, 3.0), "", "ours"),
            (of(2.0, 2.5, 3.0), "main", "the paper's"),
            (of(-2.0, -2.5, -3.0), "main", "the paper's"),
            (of(-2.0, -2.5, -3.0), "main", "the paper's"),
            (of(1.0, 2.0, 3.0), "other", "the paper's"),
        )
    ]
    assert len(leading(found)) == 3
    assert summary(found) == (
        "**Mostly not reproduced**: of the paper's 3 claims under 'main' 1 reproduced, 2 not reproduced; "
        "of all 5 claims of this page 2 reproduced, 2 not reproduced, 1 undecided."
    )
    alone = summary(leading(found))
    assert alone == "**Mostly not reproduced**: of the paper's 3 claims 1 reproduced, 2 not reproduced."
    assert summary(found[:1]) == "**Reproduced**: of our 1 claim 1 reproduced."
    assert summary([]) == "**No verdict**: this page checks no claim."


def test_the_papers_margin_is_of_its_own_numbers() -> None:
    measures = (Measure("now", "now", last("x")), Measure("late", "late", last("x"), beside="now"))
    claim = Claim("it is more", Contrast(("ours", "late"), ("other", "now")))

    def experiment(other: Arm) -> Experiment:
        arms = (Arm("ours", {}, {"now": (70.86, 2.18)}), other)
        return Experiment("one", "One", "here", arms, measures=measures)

    assert papers_margin(claim, experiment(Arm("other", {}, {"now": 44.0}))) == pytest.approx(26.86)
    assert papers_margin(claim, experiment(Arm("other"))) is None


def test_without_its_libraries_it_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy", None)
    with pytest.raises(ConfigError, match=r"verdicts need scipy: pip install 'fedappeal\[plots\]'"):
        of(1.0, 2.0)
