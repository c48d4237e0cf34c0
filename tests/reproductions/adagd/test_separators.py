"""ADA-GD's figures 1 and 6 and observation 1: separators by angle, gradients by differences, losses by hand."""

import math

import numpy as np
import pytest

from fedappeal.reproductions import load_experiment
from fedappeal.reproductions.adagd.guarantee import Realizable, draw_problem
from fedappeal.reproductions.adagd.separators import Separators, Strip, arcs, ball, compute, separator
from fedappeal.reproductions.adagd.toy import Floats, ToyAgents
from tests.studies.small import holds


def slopes(problem: ToyAgents, w: Floats) -> Floats:
    """The gradients by central differences."""
    steps = 1e-6 * np.eye(len(w))
    return np.stack([(problem.losses(w + step) - problem.losses(w - step)) / 2e-6 for step in steps], axis=1)


@pytest.mark.parametrize("problem", [Separators(arcs(0)), Strip(), draw_problem(2, 3, 2, 0.1, 0)[0]])
def test_gradients_are_those_of_the_losses(problem: ToyAgents) -> None:
    for w in np.array([[-0.9, 3.0], [0.4, -0.8], [1.2, 2.9]]):
        assert problem.gradients(w) == pytest.approx(slopes(problem, w), abs=1e-6)
        assert problem.losses(np.stack([w, w])).shape == (2, 2)


def test_losses_by_hand() -> None:
    one = Separators((np.array([[1.0, 0.0], [0.0, 2.0]]),), (0.5,))
    w = np.array([1.0, -0.5])
    assert one.losses(w) == pytest.approx([(math.log(1 + math.exp(-1)) + math.log(1 + math.e)) / 2])
    assert one.gradients(w)[0] == pytest.approx([-0.25 / (1 + math.e), -0.5 / (1 + math.exp(-1))])
    assert one.errors(w).tolist() == [0.5]
    assert Strip().losses(np.array([-1.25, 2.0])) == pytest.approx([1.0, (2.75**2 + 1 - 2) / 2])
    assert Strip().losses(np.array([0.2, 0.0])).tolist() == [0.0, 0.0]  # shared
    rounded = Realizable(np.array([[[1.0, 0.0], [0.0, 1.0]]]), np.zeros(2))
    assert rounded.losses(np.array([0.5, 2.0])) == pytest.approx([(0.25 + 1.75) / 2])
    assert rounded.constants == pytest.approx((1.0, 1.0))


def test_a_separator_is_in_its_arcs_middle() -> None:
    """Arcs of -80 to 20 degrees and mirrored: middles -30 and 30, together 0; right within 90 degrees."""
    signed = arcs(3)
    for chosen, degrees, wrong in (
        (signed[:1], -30, [0.0, 0.2]),
        (signed[1:], 30, [0.2, 0.0]),
        (signed, 0, [0.0, 0.0]),
    ):
        w = separator(chosen, np.array([0.3, 0.1]))
        assert math.degrees(math.atan2(w[1], w[0])) == pytest.approx(degrees, abs=1)
        assert Separators(signed).errors(w).tolist() == wrong


def test_serving_observation_1s_first_agent_serves_both() -> None:
    problem = Separators(ball(2))
    losses = problem.losses(5 * np.random.default_rng(0).standard_normal((500, 2)))
    served = losses[losses[:, 0] < math.log(2)]
    assert len(served) > 50
    assert (served[:, 1] <= served[:, 0]).all()


def test_figure_6_without_assumption_4() -> None:
    parallel = Strip().gradients(np.array([-0.4, 0.0]))
    assert np.linalg.matrix_rank(parallel) == 1
    settings = {"case": "strip", "draws": 1, "precision": 0.1}
    averaged, along = (compute({**settings, "method": method}, 0) for method in ("uniform", "adagd"))
    assert (averaged["lost"], averaged["harmful"]) == (2, 1)
    assert averaged["loss-1"] == pytest.approx(1, abs=0.1)
    assert (along["lost"], along["stopped"]) == (0, 0)
    assert along["points"][-1][1] == pytest.approx(0, abs=1e-3)


@pytest.mark.parametrize("name", ["adagd-figure1", "adagd-figure6", "adagd-theorem1"])
def test_claims_can_fail(name: str) -> None:
    for claim in load_experiment(name).claims:
        verdicts = {holds(claim, lambda arm, key, value=value: value) for value in (-500.0, 500.0)}
        assert verdicts == {True, False}
