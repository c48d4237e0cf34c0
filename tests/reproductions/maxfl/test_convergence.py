"""MaxFL's theorem 3.1: the rounds in NumPy against the strategy's own, gradients by autograd, the bound by hand."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord

from fedappeal.core.requirement import Evaluation, Measured
from fedappeal.protocol.keys import Decision
from fedappeal.reproductions import load_experiment
from fedappeal.reproductions.maxfl.convergence import Constants, bound, compute, constants
from fedappeal.reproductions.maxfl.logistic import LogitData, draw_clients, local_updates, squared_gradients
from strategies import MaxFL
from strategies.maxfl import theorem_step_sizes
from strategies.rounds.exchange.members import Member
from strategies.rounds.round import Reply
from strategies.rounds.strategy import rounds_of
from tests.grid import opened
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
    one = LogitData(np.array([[[1.0]]]), np.array([0.0]))
    batches = np.zeros((1, 1, 2, 3), dtype=np.int64)
    (((found,),),) = local_updates(one, np.zeros((1, 1)), np.zeros((1, 1), dtype=np.int64), batches, 0.5)
    assert found == pytest.approx(0.25 + 0.5 / (1 + math.exp(0.25)))


def test_rounds_are_the_strategys_own() -> None:
    """All clients, whole batches: nothing is drawn, so MaxFL's own rounds have to end in the same gradients."""
    rounds, tau = 6, 2
    found = squared_gradients(CLIENTS, theorem_step_sizes(rounds, tau, 4), rounds, tau, 4, 0, 1, 0)
    strategy = MaxFL(step_sizes="theorem-3.1", local_steps=tau)
    rounds_of(strategy).setup.num_rounds = rounds
    for k in range(4):
        rounds_of(strategy).members.enrol(Member(str(k), k))
    w, everything = np.zeros((1, 3)), np.tile(np.arange(7), (1, 4, tau, 1))
    for number in range(1, rounds + 1):
        assert found[number - 1] == pytest.approx(CLIENTS.squared_gradient(w)[0], rel=1e-9)
        this_round = opened(strategy, number, ArrayRecord({"w": Array(w[0])}))
        told = strategy.wave(this_round, []).all
        updates = local_updates(CLIENTS, w, np.arange(4)[None, :], everything, float(told["learning-rate"]))
        for k, (loss, rho) in enumerate(zip(CLIENTS.losses(w)[0], CLIENTS.rho, strict=True)):
            claims = strategy.report(Measured(Evaluation(loss, math.nan), rho=rho, met=loss < rho))
            sent = ArrayRecord({"w": Array(w[0] + updates[0, k])})
            strategy.add(this_round, Reply(Member(str(k), k), Decision.JOINED, 7, claims, sent))
        new = strategy.finish(this_round)
        assert new is not None
        w = new["w"].numpy()[None, :]


def test_the_bound_by_hand() -> None:
    """L_s = 1, L_c = 2, T = 10^4, tau = m = 1 of 2: eta_l = a = 0.01, nu = 2, D = 10^-4, A_2 = 48, kappa'^2 = 17.

    c = 0.0025 (1 - 0.0016) - 0.0002 (3 + 0.0048) = 0.00189504; above it 0.00005 + 0.01 (0.0004 + 0.0068)
    + 0.0002 (4 + 0.0024 + 0.0408 + 48) = 0.01053064.
    """
    of = Constants(1.0, 2.0, 4.0, 1.0, 0.5)
    assert bound(of, 10_000, 1, 1, 2) == pytest.approx(0.01053064 / 0.00189504)
    assert bound(of, 10, 1, 1, 2) == math.inf  # not sufficiently large
    assert bound(of, 10_000, 1, 2, 2) < bound(of, 10_000, 1, 1, 2)  # nothing is drawn
    # For large T the sampling's term is 4 * 12 nu L_c^2 sqrt(tau / (T m)) (M - m) / (M - 1): equation 7's third.
    of = Constants(1.0, 2.0, 0.0, 0.0, 0.0)
    expected = 48 * 2 * 4 * math.sqrt(5 / (1e12 * 4)) * (20 - 4) / 19
    assert bound(of, 10**12, 5, 4, 20) == pytest.approx(expected, rel=0.001)


def test_the_constants_hold_for_every_model() -> None:
    of, data = constants(CLIENTS), torch.from_numpy(CLIENTS.signed)
    start = float(objective(torch.zeros(3, dtype=torch.float64)))
    for scale in (0.0, 0.5, 3.0, 30.0):
        w = scale * torch.from_numpy(np.random.default_rng(0).standard_normal(3))
        slopes = torch.sigmoid(-(data @ w))
        single = -slopes[..., None] * data
        whole = single.mean(dim=1)
        assert whole.norm(dim=1).max() <= of.lipschitz
        assert ((single - whole[:, None]) ** 2).sum(dim=2).mean(dim=1).max() <= of.variance
        assert (whole**2).sum(dim=1).mean() <= (whole.mean(dim=0) ** 2).sum() + of.dissimilarity
        bent = torch.einsum("mn,mnd,mne->mde", slopes * (1 - slopes), data, data) / data.shape[1]
        assert torch.linalg.eigvalsh(bent).max() <= of.smoothness + 1e-12
        assert start - float(objective(w)) <= of.height


def test_what_a_row_reads_off_its_runs() -> None:
    experiment = load_experiment("maxfl-theorem31")
    of = constants(draw_clients(20, 40, 2, 0.5, 0))
    for arm in experiment.arms:  # T is sufficiently large
        tau, chosen = arm.settings["local-steps"], arm.settings["chosen"]
        assert bound(of, arm.settings["rounds"][0], tau, chosen, 20) < math.inf
    settings: dict[str, Any] = {**experiment.settings, **experiment.arms[1].settings, "rounds": [600], "runs": 2}
    found = compute(settings, 3)
    assert found["least"] <= found["end"] == found["measured"][0]
    assert found["room"] == pytest.approx(math.log10(found["bound"][0] / found["measured"][0]))
    assert compute(settings, 3) == found
    assert compute(settings, 4) != found


def test_claims_can_fail() -> None:
    for claim in load_experiment("maxfl-theorem31").claims:
        assert holds(claim, lambda arm, key: 0.0)
        assert not holds(claim, lambda arm, key: -0.01)
