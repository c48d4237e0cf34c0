"""The loop under all rules that add something to each gradient, against torch's own SGD."""

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor, nn

from client.training.descent import GradientTerm, Tensors, descend, trainable
from client.training.sgd import SGD
from strategies import FedProx
from tests.client.training.descents import (
    BATCHES,
    SETTINGS,
    X,
    Y,
    after,
    by_autograd,
    corrections,
    flat,
    network,
    torchs,
    training,
)
from tests.problems import local_problem


def correction(model: nn.Module) -> GradientTerm:
    own = corrections(model)
    return lambda gradients, parameters: [g + c for g, c in zip(gradients, own, strict=True)]


def pull(model: nn.Module, mu: float) -> GradientTerm:
    start = [p.detach().clone() for p in trainable(model)]

    def add(gradients: Tensors, parameters: Tensors) -> Tensors:
        return [g + mu * (p - s) for g, p, s in zip(gradients, parameters, start, strict=True)]

    return add


def descended(model: nn.Module, terms: Sequence[GradientTerm], **settings: float) -> Tensor:
    descend(model, local_problem(nn.functional.cross_entropy, X, Y, BATCHES, training(**settings)), terms)
    return flat(model)


@pytest.mark.parametrize("settings", SETTINGS)
def test_without_a_term_it_is_torchs_sgd(settings: dict[str, float]) -> None:
    got = after(SGD(), **settings)
    torch.testing.assert_close(got, by_autograd(0.0, **torchs(settings)), rtol=1e-12, atol=1e-14)
    assert torch.equal(got, descended(network(), [], **settings))


@pytest.mark.parametrize("mu", [0.0, 0.4])
@pytest.mark.parametrize("settings", SETTINGS)
def test_each_term_is_added_to_every_gradient(mu: float, settings: dict[str, float]) -> None:
    model = network()
    terms = [correction(model), pull(model, mu)] if mu else [correction(model)]
    got = descended(model, terms, **settings)
    expected = by_autograd(mu, correction=True, **torchs(settings))
    torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-14)


def test_a_frozen_parameter_stays_and_takes_no_term() -> None:
    model = network()
    frozen = next(iter(model.parameters())).requires_grad_(False)
    before = frozen.clone()
    own = corrections(model)[1:]
    descended(model, [lambda gradients, parameters: [g + c for g, c in zip(gradients, own, strict=True)]])
    descended(model, [pull(model, 0.5)])
    assert torch.equal(frozen, before)
    assert len(trainable(model)) == 3


def test_what_a_rule_freezes_between_two_steps_counts_in_each() -> None:
    model = network()
    body, head = (part for part in model.modules() if isinstance(part, nn.Linear))
    problem = local_problem(nn.functional.cross_entropy, X, Y, BATCHES, training())
    first = torch.from_numpy(BATCHES[0])
    for frozen, trained in ((head, body), (body, head)):
        frozen.requires_grad_(False)
        trained.requires_grad_(True)
        kept, before = flat(frozen), flat(trained)
        descend(model, problem)
        problem.proximal_step(model, first, [p.detach().clone() for p in trained.parameters()], 0.5, 0.1)
        assert len(problem.gradient_of(model, first)[0]) == 2
        assert torch.equal(flat(frozen), kept)
        assert not torch.equal(flat(trained), before)
    model.requires_grad_(True)
    assert len(problem.gradient_of(model, first)[0]) == 4


class TwoBiases(nn.Module):
    """autograd returns one and the same tensor as the gradient of both biases."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.tensor([0.5, -0.5, 0.2], dtype=torch.float64))
        self.b = nn.Parameter(torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return (self.a + self.b).expand(len(x), 3)


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("mu", [0.0, 0.6])
def test_parameters_that_share_a_gradient_do_not_share_what_is_added(settings: dict[str, float], mu: float) -> None:
    torchs_own = TwoBiases()
    start = [p.detach().clone() for p in torchs_own.parameters()]
    optimiser = torch.optim.SGD(torchs_own.parameters(), lr=0.3, **torchs(settings))  # type: ignore[arg-type]
    for batch in torch.from_numpy(BATCHES):
        optimiser.zero_grad()
        nn.functional.cross_entropy(torchs_own(X[batch]), Y[batch]).backward()
        for p, s in zip(torchs_own.parameters(), start, strict=True):
            assert p.grad is not None
            p.grad = p.grad + mu * (p.detach() - s)
        optimiser.step()
    for_one, for_other = TwoBiases(), TwoBiases()
    rule = FedProx.LocalRule(FedProx.Settings(proximal_mu=mu))
    rule.train(for_one, local_problem(nn.functional.cross_entropy, X, Y, BATCHES, training(**settings)))
    found = (flat(for_one), descended(for_other, [pull(for_other, mu)], **settings))
    for ours in found:
        torch.testing.assert_close(ours, flat(torchs_own), rtol=1e-12, atol=1e-14)
