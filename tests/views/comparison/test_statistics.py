"""Intervals and paired differences: numbers worked out by hand, and scipy's."""

import math
import statistics

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import stats
from statsmodels.stats.multitest import multipletests

from fedappeal.protocol.metric import ACCURACY
from fedappeal.views.comparison.measures import Measure, run_measures
from fedappeal.views.comparison.statistics import Difference, Interval, holm, t_quantile
from fedappeal.views.comparison.table import plain_number

NUMBERS = st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=12)


@pytest.mark.parametrize("confidence", [0.5, 0.9, 0.95, 0.999])
@pytest.mark.parametrize("degrees", [1, 2, 3, 4, 5, 9, 10, 29, 30, 199, 1000])
def test_the_t_quantile_is_scipys(degrees: int, confidence: float) -> None:
    assert t_quantile(degrees, confidence) == pytest.approx(stats.t.ppf((1 + confidence) / 2, degrees), rel=1e-10)


def test_the_t_quantile_of_the_tables() -> None:
    assert [round(t_quantile(n), 3) for n in (1, 2, 3, 4, 9)] == [12.706, 4.303, 3.182, 2.776, 2.262]
    for degrees, confidence in ((0, 0.95), (3, 0.0), (3, 1.0)):
        with pytest.raises(ValueError, match="no t quantile"):
            t_quantile(degrees, confidence)


def test_an_interval_by_hand() -> None:
    found = Interval.of([1.0, 2.0, 3.0])  # s = 1, so 4.3027 / sqrt(3) on each side
    assert (found.mean, found.n) == (2.0, 3)
    assert found.half == pytest.approx(2.484138)
    assert (found.low, found.high) == (pytest.approx(-0.484138), pytest.approx(4.484138))


def test_a_single_seed_has_no_interval() -> None:
    found = Interval.of([0.7])
    assert (found.mean, found.half, found.low, found.high, found.n) == (0.7, None, None, None, 1)


@pytest.mark.parametrize(
    ("values", "mean"),
    [
        ([1.0, math.nan], math.nan),
        ([1.0, math.inf], math.inf),
        ([-math.inf, 1.0, 2.0], -math.inf),
        ([math.inf, -math.inf], math.nan),
        ([math.nan], math.nan),
    ],
)
def test_a_number_that_is_not_finite_leaves_a_mean_without_interval(values: list[float], mean: float) -> None:
    interval = Interval.of(values)
    assert interval.mean == pytest.approx(mean, nan_ok=True)
    assert (interval.half, interval.low, interval.high, interval.n) == (None, None, None, len(values))
    difference = Difference.of(dict(enumerate(values)), dict.fromkeys(range(len(values)), 0.5), "higher")
    assert difference is not None
    assert difference.verdict == ""


@given(NUMBERS)
def test_an_interval_is_scipys(values: list[float]) -> None:
    assume(statistics.stdev(values) > 1e-6)
    found = Interval.of(values)
    expected = stats.t.interval(0.95, len(values) - 1, loc=np.mean(values), scale=stats.sem(values))
    assert (found.low, found.high) == pytest.approx(expected, rel=1e-8, abs=1e-8)


def test_a_paired_difference_by_hand() -> None:
    # seeds 1, 2 and 3 are in both: differences 1, 2 and 3
    found = Difference.of({0: 9.0, 1: 2.0, 2: 4.0, 3: 6.0}, {1: 1.0, 2: 2.0, 3: 3.0, 4: 0.0}, "higher")
    assert found is not None
    assert (found.interval.mean, found.interval.n, found.wins, found.verdict) == (2.0, 3, 3, "undecided")
    assert found.interval.half == pytest.approx(2.484138)
    assert Difference.of({1: 2.0}, {2: 2.0}, "higher") is None


@pytest.mark.parametrize(
    ("differences", "better", "wins", "verdict"),
    [
        ((1.0, 1.1, 0.9), "higher", 3, "better"),
        ((1.0, 1.1, 0.9), "lower", 0, "worse"),
        ((-1.0, -1.1, -0.9), "lower", 3, "better"),
        ((-1.0, -1.1, -0.9), "higher", 0, "worse"),
        ((-1.0, -1.1, -0.9), "", None, "lower"),
        ((1.0, 1.1, 0.9), "", None, "higher"),
        ((1.0, -1.0, 0.5), "higher", 2, "undecided"),
        ((1.0, -1.0, 0.5), "lower", 1, "undecided"),
        ((0.0,) * 6, "higher", 0, "level"),  # a tie is no win
        ((0.0,) * 5, "higher", 0, "undecided"),
        ((0.5,) * 6, "higher", 6, "better"),  # the same for each seed: the sign test's p is 1 / 32
        ((0.5,) * 5, "higher", 5, "undecided"),
        ((0.5,), "higher", 1, ""),
        ((-0.5,), "lower", 1, ""),
    ],
)
def test_wins_and_verdicts(differences: tuple[float, ...], better: str, wins: int | None, verdict: str) -> None:
    found = Difference.of(dict(enumerate(differences)), dict.fromkeys(range(len(differences)), 0.0), better)  # type: ignore[arg-type]
    assert found is not None
    assert (found.wins, found.verdict) == (wins, verdict)


@pytest.mark.parametrize(("amount", "verdict"), [(0.0049, "level"), (-0.0049, "level"), (0.005, "worse")])
def test_a_difference_that_is_shown_as_0_is_level(amount: float, verdict: str) -> None:
    baseline = {seed: 1.0 + seed for seed in range(6)}
    difference = Difference.of({k: v + amount for k, v in baseline.items()}, baseline, "lower", least=0.00499)
    assert difference is not None
    assert difference.verdict == verdict


@pytest.mark.parametrize("measure", run_measures(ACCURACY, True), ids=lambda measure: measure.key)
def test_the_least_of_a_measure_is_the_first_that_is_not_shown_as_0(measure: Measure) -> None:
    for share, is_zero in ((0.99, True), (1.01, False)):
        text = plain_number(share * measure.least * measure.scale, measure.digits)
        assert (float(text) == 0) is is_zero


@given(NUMBERS, st.integers(0, 2**16))
def test_a_paired_difference_is_scipys(values: list[float], seed: int) -> None:
    other = np.random.default_rng(seed).normal(size=len(values))
    differences = np.array(values) - other
    assume(differences.std() > 1e-6)
    found = Difference.of(dict(enumerate(values)), dict(enumerate(other.tolist())), "higher")
    assert found is not None
    expected = stats.ttest_rel(values, other).confidence_interval(0.95)
    low, high = expected.low, expected.high
    assert (found.interval.low, found.interval.high) == pytest.approx((low, high), rel=1e-7, abs=1e-7)
    if min(abs(low), abs(high)) > 1e-6:
        assert found.verdict == ("undecided" if low < 0 < high else "better" if low > 0 else "worse")
    assert found.wins == int((differences > 0).sum())


SHARES = st.lists(st.integers(0, 20).map(lambda n: n / 20), min_size=2, max_size=12)


@given(SHARES)
def test_the_interval_of_a_mean_share_lies_within_0_and_1_around_the_mean(values: list[float]) -> None:
    found, plain = Interval.of(values, is_share=True), Interval.of(values)
    assume(len(set(values)) > 1)
    assert found.low is not None
    assert found.high is not None
    assert plain.half is not None
    assert 0 <= found.low <= found.mean + 1e-12
    assert found.mean - 1e-12 <= found.high <= 1
    assert found.mean == plain.mean
    # Wilson's ends solve |mean - p| = t sqrt(p (1 - p) / m), with m = mean (1 - mean) / se^2.
    spread = found.mean * (1 - found.mean)
    for end in (found.low, found.high) if plain.half and spread else ():
        assert abs(found.mean - end) == pytest.approx(plain.half * (end * (1 - end) / spread) ** 0.5, abs=1e-6)


@pytest.mark.parametrize("values", [(0.0,) * 3, (0.4,) * 3, (1.0,) * 3, (0.7,), (0.9 - 0.8, 0.6 - 0.5)])
def test_numbers_without_spread_have_no_interval(values: tuple[float, ...]) -> None:
    for is_share in (True, False):
        found = Interval.of(values, is_share)
        assert (found.mean, found.low, found.high) == (pytest.approx(values[0]), None, None)


def test_a_difference_of_shares_is_cut_where_none_can_be() -> None:
    found = Difference.of({1: 1.0, 2: 0.4}, {1: 0.0, 2: 0.2}, "higher", of_shares=True)
    assert found is not None  # 0.6 +- 12.7062 * 0.4
    assert (found.interval.mean, found.interval.low, found.interval.high, found.verdict) == (
        0.6,
        -1.0,
        1.0,
        "undecided",
    )


@given(st.lists(st.floats(0, 1), min_size=1, max_size=30))
def test_holm_is_statsmodels(p_values: list[float]) -> None:
    assert holm(p_values) == pytest.approx(multipletests(p_values, 0.05, "holm")[1], abs=1e-12)


@given(NUMBERS)
def test_p_is_scipys(values: list[float]) -> None:
    assume(statistics.stdev(values) > 1e-6)
    found = Difference.of(dict(enumerate(values)), dict.fromkeys(range(len(values)), 0.0), "higher")
    assert found is not None
    assert found.p == pytest.approx(stats.ttest_1samp(values, 0.0).pvalue, rel=1e-6, abs=1e-9)


def test_p_of_differences_without_spread_is_the_sign_tests_and_of_one_seed_none() -> None:
    def p(*differences: float) -> float | None:
        found = Difference.of(dict(enumerate(differences)), dict.fromkeys(range(len(differences)), 0.0), "higher")
        return found.p if found else -1.0

    assert (p(0.5, 0.5), p(0.0, 0.0), p(0.5)) == (0.5, 1.0, None)
    assert p(*[-0.1] * 9) == stats.binomtest(0, 9).pvalue


def test_the_cut_interval_of_shares_has_the_p_of_the_whole_one() -> None:
    group, baseline = {1: 1.0, 2: 0.4}, {1: 0.0, 2: 0.2}
    cut, whole = (Difference.of(group, baseline, "higher", of_shares=shares) for shares in (True, False))
    assert cut is not None
    assert whole is not None
    assert cut.interval != whole.interval
    assert cut.p == whole.p
