"""FedALIGN's theorem 1: the bound and a round by hand, the run's constants by brute force."""

from typing import Any

import numpy as np
import pytest

from fedappeal.reproductions import load_experiment
from fedappeal.reproductions.fedalign.bound import (
    BoundConstants,
    LeastSquares,
    bound,
    compute,
    draw_clients,
    run,
)
from tests.studies.small import holds

EXPERIMENT = load_experiment("fedalign-theorem1")


def test_the_bound_by_hand() -> None:
    """gamma = 16, C_1 = 4 (1 + 32 * 3) + 16 * 5 = 468, C_2 = 48: (468 + 48 * 0.5 * 0.5) / (84 + 16) + 0.1."""
    of = BoundConstants(2.0, 1.0, 1.0, 3.0, 5.0, 0.5, 3)
    assert of.gamma == 16
    assert bound(of, 84, 0.5, 0.1) == pytest.approx(4.9)
    assert BoundConstants(2.0, 1.0, 1.0, 3.0, 5.0, 0.5, 20).gamma == 20


@pytest.mark.parametrize(("epsilon", "model"), [(0.7, 0.3125), (0.6, 0.25)])
def test_a_round_by_hand(epsilon: float, model: float) -> None:
    """F_1 = (w - 1)^2 / 2 has priority, F_2 = (w - 1.5)^2 / 2 not: at 0 they differ by 0.625; the rate is 2 / 8."""
    clients = LeastSquares(np.ones((2, 1, 1)), np.array([[1.0], [1.5]]), 1)
    excess, accepted, of = run(clients, lambda number: epsilon, 1, 1, 3, 0)
    assert excess.tolist() == [pytest.approx((1 - model) ** 2 / 2)]
    assert accepted.tolist() == [[[float(epsilon > 0.625)]] * 3]
    assert of == BoundConstants(1.0, 1.0, 0.0, 2.25, 1.0, 0.0, 1)
    assert clients.heterogeneity() == (0.0, pytest.approx([0.125]))


def test_the_constants_are_the_runs() -> None:
    """At w_0 = 0 an example's gradient is -y x; minima by least squares."""
    clients = draw_clients(EXPERIMENT.settings, 1)
    _, _, of = run(clients, lambda number: 0.0, 1, 1, 2, 0)
    single = -clients.y[..., None] * clients.x
    assert of.gradient == pytest.approx(float((single**2).sum(axis=2).mean(axis=1).max()))
    assert of.variance == pytest.approx(float(single.var(axis=1).sum(axis=1).max()))
    priority = clients.x[:5].reshape(-1, 4), clients.y[:5].reshape(-1)
    best = np.linalg.lstsq(*priority, rcond=None)[0]
    assert of.distance == pytest.approx(float(best @ best))
    own = [np.linalg.lstsq(x, y, rcond=None) for x, y in zip(clients.x, clients.y, strict=True)]
    gaps = [
        ((x @ best - y) ** 2).mean() / 2 - rest[0] / 100
        for x, y, (_, rest, *_) in zip(clients.x, clients.y, own, strict=True)
    ]
    assert of.heterogeneity == pytest.approx(np.mean(gaps[:5]))
    assert clients.heterogeneity()[1] == pytest.approx(gaps[5:])


def test_a_row_by_its_definitions() -> None:
    """Where all others are accepted, 10 of p_k = 1/5, theta_T is 1 / (1 + 2) but for equation 7's factor."""
    settings: dict[str, Any] = {**EXPERIMENT.settings, "epsilon": 1e9, "rounds": [4, 8], "runs": 2}
    found, clients = compute(settings, 0), draw_clients(settings, 0)
    of = run(clients, lambda number: 1e9, 40, 5, 2, 0)[2]
    share = 39 / (40 + of.gamma - 2)
    assert found["theta"] == pytest.approx(share / 3)
    rho = 2 * of.smoothness / of.convexity * share * clients.heterogeneity()[1].sum() / 5 / 3
    assert found["bound-end"] == pytest.approx(bound(of, 40, share / 3, rho))
    alone = compute({**settings, "epsilon": 0.0}, 0)
    assert alone["theta"] == pytest.approx(share)
    assert compute(settings, 0) == found


def test_claims_can_fail() -> None:
    good = {"room": 0.0, "fell": 0.31}
    ends = {("epsilon-to-0", "end"): 0.1, ("epsilon-0.2", "end"): 0.2}
    ends |= {("epsilon-to-0", "first"): 0.1, ("priority-only-epsilon-0", "first"): 0.2}
    for wrong, count in ((0.0, 0), (0.2, 3), (1.0, 7)):
        numbers = {**good, "room": -wrong if wrong == 1 else 0.0, "fell": 0.31 - wrong}
        shift = {key: value + wrong * (key[0] == "epsilon-to-0") for key, value in ends.items()}
        failed = [
            claim
            for claim in EXPERIMENT.claims
            if not holds(claim, lambda arm, key, n=numbers, s=shift: s.get((arm, key), n.get(key, 0.0)))
        ]
        assert len(failed) == count
