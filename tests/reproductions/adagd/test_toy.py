"""ADA-GD's examples in the plane: trajectories worked out by hand, the bad region by brute force, Theorem 1."""

import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fedappeal.reproductions import load_experiment
from fedappeal.reproductions.adagd.contours import compute, drawn_starts, drawn_steps
from fedappeal.reproductions.adagd.toy import (
    PRECISION,
    ROWS,
    ToyProblem,
    adagd,
    harmful_shift,
    harmful_steps,
    uniform,
)
from strategies.adagd import theorem_step_size
from tests.studies.small import holds

EXAMPLE = ToyProblem()
EPSILON = 0.1
EXPERIMENT = load_experiment("adagd-figure5")
ARMS = {arm.shown: arm for arm in EXPERIMENT.arms}
SHIFT = ARMS["P_alpha', uniform"].settings["alpha"]
AGENTS = {"w_1": 0, "w_2": 1, "w_3": 1, "w_4": 1}
"""The agent whose loss the long step from a start brings to 0."""
STARTS = {name: (ARMS[f"{name}, uniform, one long step"].settings["start"], agent) for name, agent in AGENTS.items()}


def stride(start: list[float], agent: int) -> float:
    """Return the step along the mean gradient that takes an agent's loss to zero at once."""
    return float(start @ ROWS[agent]) / float(EXAMPLE.gradients(np.array(start)).mean(axis=0) @ ROWS[agent])


def run(name: str, **changed: Any) -> Any:
    """Return what one row of the experiment computes for seed 0."""
    return compute({**EXPERIMENT.settings, **ARMS[name].settings, **changed}, 0)


def test_losses_and_gradients_by_hand() -> None:
    w = np.array([0.3, 0.5])
    assert EXAMPLE.losses(w) == pytest.approx([0.5, 0.2])  # |w_2|, |w_1 - w_2|
    assert EXAMPLE.gradients(w).tolist() == [[0, 1], [-1, 1]]  # sign(w_2) (0, 1), sign(w_1 - w_2) (1, -1)
    assert EXAMPLE.gradients(np.array([-1.0, -0.5])).tolist() == [[0, -1], [-1, 1]]
    shifted = ToyProblem(0.4)
    assert shifted.losses(w) == pytest.approx([0.5, 0.2])  # max(w_2, 0), max(w_1 - w_2 + 0.4, 0)
    assert shifted.losses(np.array([-1.0, -0.5])).tolist() == [0, 0]
    assert shifted.gradients(w).tolist() == [[0, 1], [1, -1]]
    assert shifted.gradients(np.array([-1.0, -0.5])).tolist() == [[0, 0], [0, 0]]
    assert shifted.losses(np.stack([w, w])).shape == (2, 2)


def test_the_optimum_is_shared() -> None:
    assert EXAMPLE.losses(np.zeros(2)).tolist() == [0, 0]
    for alpha in (0.0, 0.2, 1.0):
        assert ToyProblem(alpha).losses(np.array([-alpha, 0.0])).tolist() == [0, 0]


def test_observation_2_by_hand() -> None:
    """At (1, 1) agent 2 leaves at once; agent 1 alone keeps w_1 = 1 and goes down by steps until w_2 <= 0.1."""
    found = uniform(EXAMPLE, (1, 1), [0.35] * 9, EPSILON)
    assert found.left == {1: 0, 0: 3}
    assert found.points == pytest.approx(np.array([[1, 1], [1, 0.65], [1, 0.3], [1, -0.05]]))
    assert found.loss == pytest.approx((0.05 + 1.05) / 2)
    assert found.harmful(EPSILON)
    for name in ("(1, 1), uniform", "(1, 1), ADA-GD"):
        assert run(name)["loss"] >= 0.5 - 1e-12


def test_two_are_served_without_harm() -> None:
    # The mean gradient at (0.05, 0.2) is (-1/2, 1): a step of 0.15 leads to (0.125, 0.05), where both are content.
    found = uniform(EXAMPLE, (0.05, 0.2), [0.15, 0.15], EPSILON)
    assert found.points == pytest.approx(np.array([[0.05, 0.2], [0.125, 0.05]]))
    assert found.left == {0: 1, 1: 1}
    assert not found.harmful(EPSILON)


def test_one_long_step_lands_where_it_should() -> None:
    for name, landing in (("w_1", (-0.85, 0.0)), ("w_2", (0.6, 0.6)), ("w_3", (2 / 3, 2 / 3)), ("w_4", (-0.9, -0.9))):
        start, agent = STARTS[name]
        step = stride(start, agent)
        after = uniform(EXAMPLE, start, [step], PRECISION).points[1]
        assert after == pytest.approx(landing)
        assert EXAMPLE.bad_region(after, PRECISION)
        assert not EXAMPLE.bad_region(np.array(start), PRECISION)


@pytest.mark.parametrize("alpha", [None, 0.0, 0.3])
def test_the_bad_region_by_brute_force(alpha: float | None) -> None:
    """One agent leaves; along the other's own gradient no model is good for both, whatever the steps."""
    problem = ToyProblem(alpha)
    points = np.random.default_rng(0).uniform(-1.2, 1.2, (4000, 2))
    content = problem.losses(points) <= EPSILON
    bad = problem.bad_region(points, EPSILON)
    assert not bad[content.all(axis=1) | ~content.any(axis=1)].any()
    lengths = np.linspace(0, 6, 3001)
    checked = {True: 0, False: 0}
    for w, is_bad in zip(points[content.sum(axis=1) == 1], bad[content.sum(axis=1) == 1], strict=True):
        there = int(np.argmax(problem.losses(w)))
        way = problem.losses(w - lengths[:, None] * problem.gradients(w)[there])
        least = way.max(axis=1).min()  # the best for both, on the whole way
        if abs(least - EPSILON) > 0.002:  # the grid's width
            assert is_bad == (least > EPSILON)
            checked[bool(is_bad)] += 1
    assert min(checked.values()) > 20


def test_the_bad_region_begins_at_the_corner_that_the_paper_names() -> None:
    """Section 3: only an update towards (2 epsilon, epsilon) avoids it."""
    corner = np.array([2 * EPSILON, EPSILON])
    assert EXAMPLE.losses(corner) == pytest.approx([EPSILON, EPSILON])
    for outward in ((0.01, 0.011), (0.01, -0.005)):  # into S_2 alone, and into S_1 alone
        assert EXAMPLE.bad_region(corner + np.array(outward), EPSILON)
        assert not EXAMPLE.bad_region(corner - np.array(outward), EPSILON)


def test_observation_4_by_hand() -> None:
    """Three steps of 0.8 along (1/2, 0) lead from (2, 1) to (0.8, 1); then 23 of 0.04 along (0, 1), to w_2 = 0.08."""
    for name, loss in (("P_0, uniform", (0.08 + 0.72) / 2), ("P_alpha', uniform", (0.08 + 0.72 + SHIFT) / 2)):
        found = run(name)
        assert found["left"] == {"1": 3, "0": 26}
        assert found["points"][3] == pytest.approx([0.8, 1.0])
        assert found["points"][-1] == pytest.approx([0.8, 0.08])
        assert found["loss"] == pytest.approx(loss)
        assert found["harmful"] == 1
    assert ARMS["P_alpha', uniform"].paper == {"loss": 0.5}


def test_the_problem_that_steps_single_out_by_hand() -> None:
    """Each step along (1/2, 0): three of 0.8 lead to w_1 = 0.8; two of 0.9 to 1.1, where F_2 = 0.1 in P_0 already."""
    assert harmful_shift((2, 1), [0.8] * 3, EPSILON) == pytest.approx(0.2)
    assert harmful_shift((2, 1), [0.8] * 9, EPSILON) == pytest.approx(0.2)  # what comes after it left says nothing
    assert harmful_shift((2, 1), [2.4], EPSILON) == pytest.approx(0.2)
    assert harmful_shift((2, 1), [1.9], EPSILON) == 0  # w_1 = 1.05, F_2 = 0.05
    with pytest.raises(ValueError, match="agent 2 does not leave"):
        harmful_shift((2, 1), [0.8], EPSILON)


def test_drawn_steps_end_outside_in_their_problem() -> None:
    """Second view: in P_alpha' agent 2 leaves in the same round, and S* is never reached from there."""
    for steps in drawn_steps(30, seed=3):
        shift = harmful_shift((2, 1), steps, EPSILON)
        first, second = (uniform(ToyProblem(alpha), (2, 1), steps, EPSILON) for alpha in (0.0, shift))
        assert second.left[1] == first.left[1]
        assert second.harmful(EPSILON)
        after = second.losses[second.left[1] :]
        assert (after.max(axis=1) > EPSILON).all()
        assert after.sum(axis=1).min() >= 1 - 1e-9
    found = run("steps drawn, uniform", draws=30)
    assert (found["starts"], found["harmful"]) == (30, 1)
    ours = run("steps drawn, ADA-GD in the same problems", draws=30)
    assert ours["lost"] == ours["harmful"] == 0
    assert PRECISION < ours["loss"] <= ours["largest"] <= 4 * PRECISION


def test_drawn_steps_are_as_the_page_says() -> None:
    steps = drawn_steps(2000, seed=0)
    largest = steps.max(axis=1)
    assert steps.shape == (2000, 500)
    assert steps.min() >= 0
    assert 0.0099 < largest.min() < largest.max() <= 1
    assert (largest < 0.1).mean() == pytest.approx(0.5, abs=0.04)  # half of the logarithm's range
    assert (steps / largest[:, None]).mean() == pytest.approx(0.5, abs=0.01)
    assert not (drawn_steps(5, 0) == drawn_steps(5, 1)).any()


def test_claims_hold_and_fail_by_hand() -> None:
    numbers: dict[tuple[str, str], float] = {
        ("drawn, uniform, two chosen steps", "harmful"): 80,
        ("steps drawn, uniform", "harmful"): 100,
    }
    for arm in ("drawn outside S_1 and S_2, ADA-GD", "steps drawn, ADA-GD in the same problems"):
        numbers |= {(arm, "lost"): 0, (arm, "largest"): 0.4}

    shown = {arm.name: name for name, arm in ARMS.items()}

    def held() -> list[bool]:
        return [holds(claim, lambda arm, key: numbers[shown[arm], key]) for claim in EXPERIMENT.claims]

    assert held() == [True] * 4
    for key, worse, failing in (
        (("drawn, uniform, two chosen steps", "harmful"), 79.9, [0]),
        (("drawn outside S_1 and S_2, ADA-GD", "lost"), 0.01, [1]),
        (("steps drawn, uniform", "harmful"), 99.9, [2]),
        (("steps drawn, ADA-GD in the same problems", "largest"), 0.41, [3]),
    ):
        good, numbers[key] = numbers[key], worse
        assert [n for n, holds in enumerate(held()) if not holds] == failing
        numbers[key] = good


def test_the_first_long_steps_bring_a_loss_to_zero() -> None:
    """They stand in the experiment's file as numbers."""
    for name, (start, agent) in STARTS.items():
        settings = ARMS[f"{name}, uniform, one long step"].settings
        assert ARMS[f"{name}, ADA-GD"].settings["start"] == settings["start"]
        assert settings["first-steps"] == [pytest.approx(stride(start, agent), rel=1e-12)]


def test_no_number_of_the_paper_is_a_bound_or_derived() -> None:
    assert {arm.shown: arm.paper for arm in EXPERIMENT.arms if arm.paper} == {"P_alpha', uniform": {"loss": 0.5}}


def test_adagd_in_observation_4_by_hand() -> None:
    """eta = 0.024 from (2, 1) in P_0.2, where F = (1, 1.2).

    Case 2 moves by -0.024 (1/2, 0) until F_2 - 0.024 sqrt 2 <= 0.2: after 81 steps, F_2 = 0.228. Case 1 moves by
    -0.024 (1/2, 1/2), orthogonal to (1, -1), until F_1 - 0.024 <= 0.2: after 65 steps, F_1 = 0.22.
    """
    found = adagd(ToyProblem(0.2), (2, 1), 0.024, EPSILON)
    assert len(found.points) == 1 + 81 + 65
    assert found.points[81] == pytest.approx([2 - 81 * 0.012, 1])
    assert found.points[-1] == pytest.approx([2 - 146 * 0.012, 1 - 65 * 0.012])
    assert found.losses[-1] == pytest.approx([0.22, 0.228])
    assert found.stopped
    assert found.left == {}


def test_adagd_never_enters_a_sublevel_set_from_a_good_start() -> None:
    step_size = ARMS["w_1, ADA-GD"].settings["step-size"]
    assert step_size == theorem_step_size(PRECISION, math.sqrt(2), 2 / PRECISION, 2)
    starts = [np.array(start) for start, _ in STARTS.values()] + list(drawn_starts(60, seed=1) * 2)
    good = [start for start in starts if (EXAMPLE.losses(start) > PRECISION).all()]
    assert len(good) > 40
    for start in good:
        found = adagd(EXAMPLE, start, step_size, PRECISION)
        assert found.stopped
        assert found.losses.min() > PRECISION
        assert found.loss <= 4 * PRECISION


def test_adagd_cannot_help_a_bad_start() -> None:
    found = adagd(EXAMPLE, (1.0, 1.0), 0.02, EPSILON)
    assert found.left == {1: 0}
    assert found.harmful(EPSILON)
    assert found.points[:, 0] == pytest.approx(1.0)


def test_harmful_steps_do_harm() -> None:
    done = 0
    for start in drawn_starts(60, seed=2):
        if steps := harmful_steps(EXAMPLE, start, EPSILON):
            found = uniform(EXAMPLE, start, steps, EPSILON)
            assert set(found.left) == {0, 1}
            assert found.harmful(EPSILON)
            done += 1
    assert done > 40
    assert harmful_steps(EXAMPLE, np.array([0.01, 0.02]), EPSILON) is None  # in S*: both leave at once
    # From above, averaging moves along w_1 + w_2 / 2 = c. For |c| <= epsilon / 2 it meets S_1 and S_2 only where the
    # other agent's own end is in S* too.
    for c, harmless in ((0.0, True), (0.04, True), (0.07, False), (-0.5, False)):
        assert (harmful_steps(EXAMPLE, np.array([c - 0.4, 0.8]), EPSILON) is None) == harmless


def test_drawn_starts_fill_the_unit_disc_evenly() -> None:
    starts: NDArray[np.float64] = drawn_starts(20_000, seed=0)
    radii = np.linalg.norm(starts, axis=1)
    assert radii.max() <= 1
    assert (radii < 0.5).mean() == pytest.approx(0.25, abs=0.02)
    assert starts.mean(axis=0) == pytest.approx([0, 0], abs=0.02)
    assert (drawn_starts(5, 0) == drawn_starts(5, 0)).all()
    assert not (drawn_starts(5, 0) == drawn_starts(5, 1)).any()


def test_drawn_rows() -> None:
    chosen = run("drawn, uniform, two chosen steps", draws=40)
    small, ours = (run(f"drawn outside S_1 and S_2, {how}", draws=40) for how in ("uniform", "ADA-GD"))
    assert chosen["starts"] == 40
    assert small["starts"] == ours["starts"] < 40
    assert chosen["harmful"] > small["harmful"] > ours["harmful"] == 0
    assert ours["lost"] == 0
    assert ours["loss"] <= ours["largest"] <= 4 * PRECISION
