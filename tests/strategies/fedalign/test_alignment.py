"""FedALIGN's mathematics: Algorithm 1's two conditions, equations 5, 7 and 8, and epsilon over the rounds."""

import math
from fractions import Fraction
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedappeal.settings.config import ConfigError
from strategies.fedalign.alignment import (
    Statement,
    accepts,
    data_fraction,
    epsilon_schedule,
    joins,
    loss_of,
    priority_loss,
    rho,
    theta,
)

eighths = st.integers(-800, 800).map(lambda n: n / 8)  # sums of these are exact
positive = st.floats(0, 1e6)


@given(eighths, eighths, eighths)
def test_a_client_counts_where_the_losses_are_at_most_epsilon_apart(local: float, f: float, epsilon: float) -> None:
    near = abs(Fraction(local) - Fraction(f)) <= Fraction(epsilon)  # section 3.1; never, for epsilon < 0
    assert (joins(local, f, epsilon) and accepts(local, f, epsilon)) == near
    assert joins(local, f, epsilon) == accepts(-local, -f, epsilon)


def test_both_conditions_at_their_bounds() -> None:
    assert joins(1.25, 1.0, 0.25)
    assert not joins(math.nextafter(1.25, 2), 1.0, 0.25)
    assert accepts(0.75, 1.0, 0.25)
    assert not accepts(math.nextafter(0.75, 0), 1.0, 0.25)
    assert joins(1e300, 1.0, math.inf)
    assert accepts(-1e300, 1.0, math.inf)
    assert not joins(1.0, math.nan, 1.0)
    assert not accepts(1.0, math.nan, 1.0)


@given(st.lists(st.tuples(st.floats(-100, 100), st.integers(1, 20)), min_size=1, max_size=6))
def test_f_is_the_mean_over_all_examples_of_the_priority_clients(claims: list[tuple[float, int]]) -> None:
    every_example = [loss for loss, examples in claims for _ in range(examples)]
    losses, examples = zip(*claims, strict=True)
    assert priority_loss(losses, examples) == pytest.approx(math.fsum(every_example) / len(every_example), abs=1e-9)


@given(st.lists(st.builds(Statement, st.floats(0, 10), st.integers(1, 99)), min_size=1, max_size=6), st.randoms())
def test_f_does_not_depend_on_who_answers_first(claims: list[Statement], rng: Random) -> None:
    told = loss_of(claims)
    rng.shuffle(claims)
    assert loss_of(claims) == told
    assert loss_of([]) is None


def test_weights_and_the_terms_of_the_bound_by_hand() -> None:
    assert priority_loss([1.0, 2.0], [1, 3]) == 1.75
    assert data_fraction(30, 20) == 1.5  # p_k may exceed 1 outside of P
    assert data_fraction(30, 20, 0.5) == 0.5
    assert data_fraction(5, 20, 0.5) == 0.25
    assert (theta(0.0), rho(0.0, 7.0)) == (1.0, 0.0)  # "Consistency of our result with FedAvg"
    assert theta(0.5 + 1.5) == pytest.approx(1 / 3)
    assert rho(0.5 + 1.5, 0.3) == pytest.approx((0.5 * 0.3 + 1.5 * 0.3) / 3)  # equation 8 with Gamma_k = 0.3


@given(positive, positive)
def test_more_help_means_less_heterogeneity_and_more_bias(one: float, other: float) -> None:
    less, more = sorted((one, other))
    assert 0 < theta(more) <= theta(less) <= 1
    assert 0 <= rho(less) <= rho(more) < 1
    assert theta(one) + rho(one) == pytest.approx(1)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("constant", [0.8, 0.8, 0.8, 0.8, 0.8]),
        ("linear", [0.8, 0.6, 0.4, 0.2, 0.0]),
        ("exponential", [0.8, 0.4, 0.2, 0.1, 0.05]),
        ("step", [0.8, 0.8, 0.0, 0.0, 0.0]),  # 0.5 * 5 rounds: the first two
    ],
)
def test_schedules_by_hand(kind: str, expected: list[float]) -> None:
    schedule = epsilon_schedule(kind, 0.8, rounds=5, decay=0.5, drop=0.5)
    assert [schedule(t) for t in range(1, 6)] == pytest.approx(expected)


def test_schedules_at_their_ends() -> None:
    assert epsilon_schedule("linear", 0.8, 1, 1.0, 0.5)(1) == 0.8  # the first round, though it is the last too
    assert [epsilon_schedule("linear", 0.8, 2, 1.0, 0.5)(t) for t in (1, 2, 3)] == [0.8, 0.0, 0.0]
    assert epsilon_schedule("linear", 0.8, 5, 1.0, 0.5)(9) == 0.0
    step = [epsilon_schedule("step", 0.8, 100, 1.0, drop) for drop in (0.0, 0.07, 1.0)]
    assert [sum(schedule(t) > 0 for t in range(1, 101)) for schedule in step] == [0, 7, 100]
    with pytest.raises(ConfigError, match="epsilon-schedule = 'cosine' is not allowed: constant, linear"):
        epsilon_schedule("cosine", 0.8, 5, 1.0, 0.5)
