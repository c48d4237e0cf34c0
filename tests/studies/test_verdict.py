"""A claim's verdict, against numbers worked out by hand."""

import pytest

from fedappeal.studies.experiment import Arm, Claim, Experiment, Quick
from fedappeal.studies.verdict import Verdict, papers_margin, summary
from fedappeal.views.comparison.measures import Measure, last


def a_claim(inclusive: bool = False, unit: str = "", among: int = 0) -> Claim:
    return Claim("it is more", lambda number: number("ours", "late"), "", unit, inclusive, among)


@pytest.mark.parametrize(
    ("margins", "inclusive", "word", "held"),
    [
        ((1.0, 2.0, 3.0), False, "level", 3),  # 2 -+ 4.303 * 1 / sqrt(3) = -0.48 to 4.48
        ((2.0, 2.5, 3.0), False, "yes", 3),  # 2.5 -+ 4.303 * 0.5 / sqrt(3)
        ((-2.0, -2.5, -3.0), True, "no", 0),
        ((-1.0, 2.0, 0.0), False, "level", 1),
        ((0.0, 0.0), True, "yes", 2),
        ((0.0, 0.0), False, "no", 0),
        ((0.1,), False, "yes", 1),  # of one seed there is no interval
        ((0.0,), False, "no", 0),
        ((float("inf"), float("inf")), False, "yes", 2),
        ((), False, "unmeasured", 0),
    ],
)
def test_whether_it_holds(margins: tuple[float, ...], inclusive: bool, word: str, held: int) -> None:
    verdict = Verdict(a_claim(inclusive), margins, 0, None)
    assert (verdict.word, verdict.held) == (word, held)


@pytest.mark.parametrize(
    ("margins", "unmeasured", "word"),
    [
        ((2.0, 2.5, 3.0), 1, "level"),  # a seed without a number keeps a claim from holding
        ((-2.0, -2.5, -3.0), 1, "level"),
        ((2.0, 2.5, 3.0, float("inf")), 0, "yes"),
        ((2.0, 2.5, 3.0, float("-inf")), 0, "level"),
        ((-2.0, -2.5, -3.0, float("-inf")), 0, "no"),
        ((-2.0, -2.5, -3.0, float("inf")), 0, "level"),
        ((-2.0, -2.5, -3.0, float("nan")), 0, "level"),
        ((float("inf"), float("-inf")), 0, "level"),
        ((2.0, float("-inf")), 0, "level"),  # of one finite margin there is no interval
        ((-2.0, float("inf")), 0, "level"),
        ((2.0, float("inf")), 0, "yes"),
    ],
)
def test_seeds_outside_of_the_interval_count(margins: tuple[float, ...], unmeasured: int, word: str) -> None:
    assert Verdict(a_claim(), margins, unmeasured, None).word == word


def test_the_words_by_hand() -> None:
    # mean -1.2, deviation sqrt((1.2^2 * 2 + 0.8^2 + ...) / 4); t of four degrees of freedom 2.776
    margins = (-4.2, 1.8, -3.2, 0.8, -1.2)  # deviations -3, 3, -2, 2, 0: variance 26 / 4
    words = Verdict(a_claim(unit="points", among=4), margins, 1, 27.0).words()
    # 2.776 * sqrt(6.5 / 5) = 3.166
    assert words == (
        "level, 2 of 5 seeds (1 without a number) (by chance 1 in 4), "
        "gap -1.2 points (95 % interval -4.4 to +2.0) against the paper's +27.0"
    )
    assert Verdict(a_claim(), (0.004,), 0, None).words() == "yes, 1 of 1 seed, gap +0.0040"
    assert Verdict(a_claim(), (), 2, 1.0).words() == "not measured: 2 seeds without a number"


def test_how_many_hold_and_how_often_the_papers_gap_is_elsewhere() -> None:
    found = [
        Verdict(a_claim(), margins, unmeasured, paper)
        for margins, unmeasured, paper in (
            ((2.0, 2.5, 3.0), 0, 2.6),
            ((2.0, 2.5, 3.0), 0, 9.0),
            ((-1.0, 1.0), 0, None),
            ((-2.0,), 0, 1.0),  # no interval to be outside of
            ((), 1, None),
        )
    ]
    assert summary(found) == (
        "Of 5 claims checked, 2 hold, 1 is level (within noise, or a seed has no number), 1 does not hold, "
        "1 could not be measured. "
        "The paper's own gap is outside of our interval in 1 of 2."
    )
    assert summary([]) == ""


def test_the_papers_margin_is_of_its_own_numbers() -> None:
    measures = (Measure("now", "now", last("x")), Measure("late", "late", last("x"), beside="now"))
    claim = Claim("it is more", lambda number: number("ours", "late") - number("other", "now"))

    def experiment(other: Arm) -> Experiment:
        arms = (Arm("ours", {}, {"now": (70.86, 2.18)}), other)
        return Experiment("one", "One", "here", "", {}, arms, measures, Quick({}))

    assert papers_margin(claim, experiment(Arm("other", {}, {"now": 44.0}))) == pytest.approx(26.86)
    assert papers_margin(claim, experiment(Arm("other"))) is None
