"""MaxFL's figure 7: rate, slope and curvature against numbers by hand, differences, and the strategy's own step."""

import math

import numpy as np
import pytest

from fedappeal.reproductions import load_experiment
from fedappeal.reproductions.maxfl.learning_rate import (
    BEYOND,
    MOST,
    NEAR,
    SMOOTHNESS,
    compute,
    curvature,
    flat,
    looked_at,
    rate,
    rounds_needed,
    slope,
)
from fedappeal.reproductions.maxfl.mean_estimation import (
    STABILIZER,
    draw_estimates,
    federated_models,
    minimise,
    objective,
)
from strategies import MaxFL
from tests.studies.small import holds

ESTIMATES = np.array([[-3.0, 3.0]])
MODELS = np.linspace(-7, 7, 57)


def test_one_client_by_hand() -> None:
    """At distance sqrt(ln 3) s = 3/4 and q = 3/16: slope 3/8 d, curvature 3/16 (2 - 2 ln 3)."""
    w, estimate = np.array([math.sqrt(math.log(3))]), np.array([[0.0]])
    assert slope(w, estimate)[0] == pytest.approx(3 / 8 * math.sqrt(math.log(3)))
    assert curvature(w, estimate)[0] == pytest.approx(3 / 16 * (2 - 2 * math.log(3)))
    assert rate(w, estimate)[0] == pytest.approx(1 / (2 * (3 / 16 + 1e-3)))


def test_slope_and_curvature_are_derivatives() -> None:
    h = 1e-5
    numeric = (objective(MODELS + h, ESTIMATES) - objective(MODELS - h, ESTIMATES)) / (2 * h)
    np.testing.assert_allclose(slope(MODELS, ESTIMATES), numeric, atol=1e-9)
    numeric = (slope(MODELS + h, ESTIMATES) - slope(MODELS - h, ESTIMATES)) / (2 * h)
    np.testing.assert_allclose(curvature(MODELS, ESTIMATES), numeric, atol=1e-8)


@pytest.mark.parametrize("w", [-2.0, 0.3, 4.0])
def test_a_step_at_the_rate_is_the_strategys_round(w: float) -> None:
    """Clients that return their local minimum went 1 / L_s along their gradient."""
    (_, after) = federated_models(MaxFL(stabilizer=STABILIZER), [-0.5, 0.7, 3.0], w, 1)
    here, estimates = np.array([w]), np.array([[-0.5, 0.7, 3.0]])
    assert after == pytest.approx((here - rate(here, estimates) * slope(here, estimates))[0], abs=1e-12)


def test_flat_is_far_out_and_between_clients_that_are_far_apart_but_not_a_minimum() -> None:
    (w,) = looked_at(ESTIMATES)
    assert (w[0], w[-1]) == (-7.0, 7.0)
    found = dict(zip(w.round(9).tolist(), flat(w, ESTIMATES).tolist(), strict=True))
    assert (found[-7.0], found[7.0], found[0.0]) == (True, True, True)
    assert (found[-3.01], found[3.01]) == (False, False)
    assert (found[1.995], found[3.99]) == (False, False)


def test_rounds_are_those_of_a_plain_loop() -> None:
    estimates = draw_estimates((-0.5, 0.5), 1.0, 3, 4)
    for constant in (True, False):
        found = rounds_needed(estimates, constant)
        for draw, rounds in zip(estimates, found, strict=True):
            one, rounds_left, w = draw[None, :], int(rounds), np.array([draw.max() + BEYOND])
            (grid,) = looked_at(one)
            fixed = 1 / np.abs(curvature(grid, one)).max()
            (goal,) = minimise(one, np.array([draw.argmax()])).models(one)
            height = objective(np.array([goal]), one) + NEAR
            while rounds_left:
                assert objective(w, one) > height
                w, rounds_left = w - (fixed if constant else rate(w, one)) * slope(w, one), rounds_left - 1
            assert objective(w, one) <= height
            assert 0 < rounds < MOST


def test_without_noise_every_draw_is_alike() -> None:
    """With gamma 0 all draws have the estimates -3 and 3: the rate far out is nearly M / (L_s epsilon)."""
    found = compute({"half": 3.0, "gamma": 0.0, "draws": 2}, 0)
    assert found["higher"] == 1.0
    assert found["rate_elsewhere"] < found["rate_flat"] < 2 / (SMOOTHNESS * STABILIZER)
    assert rate(np.array([30.0]), ESTIMATES)[0] == pytest.approx(2 / (SMOOTHNESS * STABILIZER))


def test_claims_can_fail() -> None:
    rows = ("little-heterogeneity", "much-heterogeneity")
    keys = {"higher": 1.0, "rounds-adaptive": 3.0, "rounds-constant": 20.0}
    good = {(row, key): value for row in rows for key, value in keys.items()}
    claims = load_experiment("maxfl-figure7").claims
    assert all(holds(claim, lambda arm, key: good[arm, key]) for claim in claims)
    for key, value in (("higher", 0.98), ("rounds-constant", 3.0)):
        bad = {**good, (rows[0], key): value}
        assert sum(not holds(claim, lambda arm, key, bad=bad: bad[arm, key]) for claim in claims) == 1
