"""FedProx's local rule: against autograd of the objective written out, by hand, and SGD where mu is 0."""

import numpy as np
import pytest
import torch
from torch import nn

from client.training.sgd import SGD
from fedappeal.core.local_rule import LocalRule
from strategies import FedProx
from tests.client.training.descents import (
    BATCHES,
    SETTINGS,
    X,
    Y,
    after,
    by_autograd,
    network,
    torchs,
    training,
)
from tests.problems import local_problem


def prox(mu: float) -> LocalRule:
    return FedProx.LocalRule(FedProx.Settings(proximal_mu=mu))


@pytest.mark.parametrize("settings", SETTINGS)
def test_prox_descends_on_the_written_out_objective(settings: dict[str, float]) -> None:
    # Six steps: from the second on the model is away from w_t, where the term's gradient is not zero.
    got = after(prox(0.7), **settings)
    torch.testing.assert_close(got, by_autograd(0.7, **torchs(settings)), rtol=1e-12, atol=1e-14)
    assert (got - after(SGD(), **settings)).norm() > 1e-3


def test_the_proximal_term_is_of_squared_norms_by_hand() -> None:
    # F = 4 w: w_1 = 1 - 0.5 * 4 = -1, and w_2 = w_1 - 0.5 * (4 + mu (w_1 - 1)) = -1 - 0.5 * (4 - 1 * 2) = -2;
    # an unsquared norm would give -2.75.
    model = nn.Linear(1, 1, bias=False).double()
    nn.init.constant_(model.weight, 1.0)
    settings = training(np.zeros((2, 1), dtype=np.int64), **{"learning-rate": 0.5, "batch-size": 1})
    ones, batches = torch.ones(12, 1, dtype=torch.float64), np.zeros((2, 1), dtype=np.int64)
    prox(1.0).train(model, local_problem(lambda out, y: 4 * out.sum(), ones, Y, batches, settings))
    assert model.weight.item() == pytest.approx(-2.0, rel=1e-15)


@pytest.mark.parametrize("settings", SETTINGS)
def test_mu_zero_is_sgd_to_the_bit(settings: dict[str, float]) -> None:
    assert torch.equal(after(prox(0.0), **settings), after(SGD(), **settings))


def test_the_first_step_of_prox_is_that_of_sgd() -> None:
    assert torch.equal(after(prox(9.0), BATCHES[:1]), after(SGD(), BATCHES[:1]))


def test_a_frozen_parameter_stays() -> None:
    model = network()
    frozen = next(iter(model.parameters())).requires_grad_(False)
    before = frozen.clone()
    prox(0.5).train(model, local_problem(nn.functional.cross_entropy, X, Y, BATCHES, training()))
    assert torch.equal(frozen, before)
