"""MaxFL's theorem 3.1: the rounds in NumPy against the strategy's own, gradients by autograd, slopes by hand."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord

from fedappeal.core.requirement import Evaluation, Measured
from fedappeal.protocol.keys import Decision
from fedappeal.reproductions import load_experiment
from fedappeal.reproductions.maxfl.convergence import compute, least_rounds, log_slope
from fedappeal.reproductions.maxfl.logistic import Clients, draw_clients, local_updates, squared_gradients
from strategies import MaxFL
from strategies.maxfl import theorem_step_sizes
from strategies.rounds.exchange.members import Member
from strategies.rounds.round import Reply
from tests.studies.small import holds

CLIENTS = draw_clients(4, 7, 3, 0.5, 1)


def objective(w: torch.Tensor) -> torch.Tensor:
    losses = torch.nn.functional.softplus(-(torch.from_numpy(CLIENTS.signed) @ w)).mean(dim=1)
    return torch.sigmoid(losses - torch.from_numpy(CLIENTS.rho)).mean()


def test_the_gradient_is_that_of_equation_three() -> None:
    models = np.array([[0.0, 0.0, 0.0], [0.7, -1.0, 2.0]])
    for w, found in zip(models, CLIENTS.squared_gradient(models), strict=True):
        at = torch.from_numpy(w).requires_grad_()
        (gradient,) = torch.autograd.grad(objective(at), at)
        assert found == pytest.approx(float(gradient @ gradient), rel=1e-10)


def test_the_data_are_as_smooth_as_is_said() -> None:
    assert np.linalg.norm(CLIENTS.signed, axis=2).max() <= 1 + 1e-12
    assert (CLIENTS.rho < math.log(2)).all()  # better than guessing


def test_a_local_update_by_hand() -> None:
    """Example 1, label 1, twice from 0: 0.5 / 2 = 0.25, then 0.25 + 0.5 / (1 + e^0.25)."""
    one = Clients(np.array([[[1.0]]]), np.array([0.0]))
    batches = np.zeros((1, 1, 2, 3), dtype=np.int64)
    (((found,),),) = local_updates(one, np.zeros((1, 1)), np.zeros((1, 1), dtype=np.int64), batches, 0.5)
    assert found == pytest.approx(0.25 + 0.5 / (1 + math.exp(0.25)))


def test_rounds_are_the_strategys_own() -> None:
    """All clients, whole batches: nothing is drawn, so MaxFL's own rounds have to end in the same gradients."""
    rounds, tau = 6, 2
    found = squared_gradients(CLIENTS, theorem_step_sizes(rounds, tau, 4), rounds, tau, 4, 0, 1, 0)
    strategy = MaxFL(step_sizes="theorem-3.1", local_steps=tau)
    strategy.num_rounds = rounds
    for k in range(4):
        strategy.members.enrol(Member(str(k), k))
    w, everything = np.zeros((1, 3)), np.tile(np.arange(7), (1, 4, tau, 1))
    for number in range(1, rounds + 1):
        assert found[number - 1] == pytest.approx(CLIENTS.squared_gradient(w)[0], rel=1e-9)
        this_round = strategy.open_round(number, ArrayRecord({"w": Array(w[0])}))
        told = strategy.wave(this_round, []).all
        updates = local_updates(CLIENTS, w, np.arange(4)[None, :], everything, float(told["learning-rate"]))
        for k, (loss, rho) in enumerate(zip(CLIENTS.losses(w)[0], CLIENTS.rho, strict=True)):
            claims = strategy.report(Measured(Evaluation(loss, math.nan), rho=rho, met=loss < rho))
            sent = ArrayRecord({"w": Array(w[0] + updates[0, k])})
            strategy.add(this_round, Reply(Member(str(k), k), Decision.JOINED, 7, claims, sent))
        new = strategy.finish(this_round)
        assert new is not None
        w = new["w"].numpy()[None, :]


def test_slopes_by_hand() -> None:
    assert log_slope([1, 4, 16], [8.0, 4.0, 2.0]) == (pytest.approx(-0.5), pytest.approx(0.0, abs=1e-12))
    # ln x = -1, 0, 1 and ln y = 0, 3, 0 give slope 0; residuals -1, 2, -1: t(1) = 12.706, s^2 = 6, Sxx = 2.
    slope, half = log_slope([math.exp(-1), 1.0, math.e], [1.0, math.exp(3), 1.0])
    assert slope == pytest.approx(0.0, abs=1e-12)
    assert half == pytest.approx(12.7062 * math.sqrt(6 / 2), rel=1e-4)


def test_the_least_number_of_rounds_by_hand() -> None:
    """81 m tau / 4."""
    assert [least_rounds(5, 5), least_rounds(5, 1), least_rounds(20, 5)] == [507, 102, 2025]
    for arm in load_experiment("maxfl-theorem31").arms:
        assert min(arm.settings["rounds"]) >= least_rounds(arm.settings["chosen"], arm.settings["local-steps"])
        assert len(arm.settings["rounds"]) >= 3


def test_what_a_row_reads_off_its_runs() -> None:
    experiment = load_experiment("maxfl-theorem31")
    settings: dict[str, Any] = {**experiment.settings, **experiment.arms[0].settings, **experiment.quick.settings}
    found = compute(settings, 3)
    assert all(least <= average for least, average in zip(found["least"], found["average"], strict=True))
    assert found["slope"] == log_slope(found["rounds"], found["least"])[0]
    steps = [math.log2(a / b) for a, b in zip(found["least"], found["least"][1:], strict=False)]
    assert found["falls"] == pytest.approx(min(steps))
    measures = {measure.key: measure for measure in experiment.measures}
    assert measures["average-end"].number([found]) == pytest.approx(
        math.log2(found["average"][1] / found["average"][2])
    )
    assert measures["least-512"].number([found]) is None
    assert measures["least-512"].number([{"rounds": [256, 512], "least": [1.0, 0.001]}]) == pytest.approx(-3.0)
    assert compute(settings, 3) == found
    assert compute(settings, 4) != found


def test_claims_can_fail() -> None:
    experiment = load_experiment("maxfl-theorem31")
    keys = {"slope": -0.5, "average-slope": -0.5, "falls": 0.1}
    good = {(arm.name, key): value for arm in experiment.arms for key, value in keys.items()}
    assert all(holds(claim, lambda arm, key: good[arm, key]) for claim in experiment.claims)
    for key, value in (("slope", -0.49), ("average-slope", -0.4), ("falls", 0.0)):
        bad = {**good, (experiment.arms[1].name, key): value}
        assert sum(not holds(claim, lambda arm, key, bad=bad: bad[arm, key]) for claim in experiment.claims) == 1
