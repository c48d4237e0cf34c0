"""A parameter on which a batch's loss does not depend stays as it is in that step, as by ``torch.optim``."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from client.training.sgd import SGD, AdamW
from fedappeal.core.local_rule import LocalRule
from fedappeal.simulation.forms.batched import Cohort, Examples, line_up, train, train_stacked
from fedappeal.simulation.forms.layered import LayeredForm
from fedappeal.simulation.forms.vectorised import VmapForm
from strategies import FedProx, PerFedAvg, PFedMe, Scaffold
from tests.client.training.descents import BATCHES, SETTINGS, X, Y, corrections, flat, torchs, training
from tests.problems import GivenLoss, local_problem


class Branched(nn.Module):
    """One of two experts, by the first example; the first batch leaves one out, a later one the other."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.shared, self.one, self.other = (nn.Linear(5, n).double() for n in (5, 3, 3))

    def forward(self, x: Tensor) -> Tensor:
        expert = self.one if x[0, 0] > 0 else self.other
        out: Tensor = expert(self.shared(x).tanh())
        return out


def by_torch(
    make: Callable[..., torch.optim.Optimizer], term: Callable[[int, Tensor], Any], **settings: Any
) -> Tensor:
    """Train by an optimiser of torch's, with a term added to each gradient that there is."""
    model = Branched()
    optimiser = make(model.parameters(), lr=0.3, **settings)
    idle = 0
    for batch in torch.from_numpy(BATCHES):
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(X[batch]), Y[batch]).backward()
        for place, p in enumerate(model.parameters()):
            idle += p.grad is None
            if p.grad is not None:
                p.grad = p.grad + term(place, p.detach())
        optimiser.step()
    assert 0 < idle < 4 * len(BATCHES)
    return flat(model)


def ours(rule: LocalRule, batches: Any = BATCHES, **settings: float) -> Tensor:
    model = Branched()
    rule.train(model, local_problem(nn.functional.cross_entropy, X, Y, batches, training(batches, **settings)))
    return flat(model)


START = [p.detach().clone() for p in Branched().parameters()]
CORRECTIONS = corrections(Branched())


@pytest.mark.parametrize("settings", SETTINGS)
def test_sgd_prox_and_scaffold_are_torchs_sgd(settings: dict[str, float]) -> None:
    own = torchs(settings)
    prox = FedProx.LocalRule(FedProx.Settings(proximal_mu=0.4))
    cases: Sequence[tuple[LocalRule, Callable[[int, Tensor], Any]]] = (
        (SGD(), lambda place, p: 0.0),
        (prox, lambda place, p: 0.4 * (p - START[place])),
        (Scaffold.LocalRule(Scaffold.Settings(), CORRECTIONS), lambda place, p: CORRECTIONS[place]),
    )
    for rule, term in cases:
        expected = by_torch(torch.optim.SGD, term, **own)
        torch.testing.assert_close(ours(rule, **settings), expected, rtol=1e-12, atol=1e-14)


def test_adamw_is_torchs_adamw() -> None:
    expected = by_torch(torch.optim.AdamW, lambda place, p: 0.0, weight_decay=0.05)
    torch.testing.assert_close(ours(AdamW(), **{"weight-decay": 0.05}), expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    "rule",
    [
        PFedMe.LocalRule(PFedMe.Settings()),
        PerFedAvg.LocalRule(PerFedAvg.Settings(maml_order="first")),
        PerFedAvg.LocalRule(PerFedAvg.Settings(maml_order="second")),
    ],
)
def test_an_expert_that_no_batch_asks_stays_and_the_rest_is_trained_as_without_it(rule: LocalRule) -> None:
    row = int((X[:, 0] > 0).nonzero()[0])
    batches = np.concatenate([np.full((6, 1), row), BATCHES], axis=1)

    class OneAlone(Branched):
        def __init__(self) -> None:
            super().__init__()
            del self.other

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.one(self.shared(x).tanh())
            return out

    alone = OneAlone()
    rule.train(alone, local_problem(nn.functional.cross_entropy, X, Y, batches, training(batches)))
    got = ours(rule, batches)
    unused = torch.cat([p.reshape(-1) for p in START[4:]])
    torch.testing.assert_close(got, torch.cat([flat(alone), unused]), rtol=1e-12, atol=1e-14)


class Spare(nn.Module):
    """A layer that is never called."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.used, self.spare = nn.Linear(5, 3).double(), nn.Linear(5, 3).double()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.used(x)
        return out


@pytest.mark.parametrize("rule", [SGD(), FedProx.LocalRule(FedProx.Settings(proximal_mu=0.4))])
@pytest.mark.parametrize("settings", SETTINGS)
def test_side_by_side_by_vmap_it_stays_too(settings: dict[str, float], rule: LocalRule) -> None:
    form = VmapForm(GivenLoss(nn.functional.cross_entropy), Spare())
    stacked = {name: torch.stack([p.detach()] * 4) for name, p in Spare().named_parameters()}
    examples = Examples(X.repeat(4, 1), Y.repeat(4), [0, 12, 24, 36, 48])
    batches, _ = line_up([torch.from_numpy(BATCHES) + 12 * k for k in range(4)], torch.device("cpu"))
    terms = type(rule).batched_terms([rule] * 4, stacked)
    with torch.no_grad():
        train(form, Cohort(stacked), examples, batches, training(**settings), terms)
    model = Spare()
    rule.train(model, local_problem(nn.functional.cross_entropy, X, Y, BATCHES, training(**settings)))
    for name, p in model.named_parameters():
        torch.testing.assert_close(stacked[name][3], p.detach(), rtol=1e-10, atol=1e-12)
    assert torch.equal(stacked["spare.weight"][0], Spare().spare.weight)


@pytest.mark.parametrize(
    "rule",
    [
        AdamW(AdamW.Settings(eps=1e-3)),
        PFedMe.LocalRule(PFedMe.Settings()),
        PerFedAvg.LocalRule(PerFedAvg.Settings(maml_order="first")),
    ],
)
def test_side_by_side_it_stays_by_rules_that_stack(rule: LocalRule) -> None:
    form = VmapForm(GivenLoss(nn.functional.cross_entropy), Spare())
    stacked = {name: torch.stack([p.detach()] * 4) for name, p in Spare().named_parameters()}
    examples = Examples(X.repeat(4, 1), Y.repeat(4), [0, 12, 24, 36, 48])
    batches, _ = line_up([torch.from_numpy(BATCHES) + 12 * k for k in range(4)], torch.device("cpu"))
    train_stacked(form, Cohort(stacked), examples, batches, training(), rule)
    model = Spare()
    rule.train(model, local_problem(nn.functional.cross_entropy, X, Y, BATCHES, training()))
    for name, p in model.named_parameters():
        torch.testing.assert_close(stacked[name][3], p.detach(), rtol=1e-9, atol=1e-11)
    assert torch.equal(stacked["spare.weight"][0], Spare().spare.weight)


class _Weighted(GivenLoss):
    def loss(self, outputs: Any, y: Any, reduction: str = "mean") -> Tensor:
        return super().loss(outputs, y) * (len(y) if reduction == "sum" else 1)


def test_a_loss_that_is_no_mean_is_each_clients_own_by_batched_layers() -> None:
    weighted = nn.CrossEntropyLoss(torch.tensor([0.1, 5.0, 1.0], dtype=torch.float64))
    form = LayeredForm(_Weighted(weighted), nn.Sequential(nn.Linear(5, 3).double()))

    torch.manual_seed(1)
    module = nn.Sequential(nn.Linear(5, 3).double())
    stacked = {name: torch.stack([p.detach()] * 2) for name, p in module.named_parameters()}
    examples, sizes = Examples(X, Y, [0, 5, 12]), (slice(0, 5), slice(5, 12))
    batches, places = line_up([torch.arange(12)[rows].unsqueeze(0) for rows in sizes], torch.device("cpu"))
    with torch.no_grad():
        train(form, Cohort(stacked), examples, batches, training(BATCHES[:1]))
    for place, client in enumerate(places):
        gradients = torch.autograd.grad(
            weighted(module(X[sizes[client]]), Y[sizes[client]]), list(module.parameters())
        )
        for (name, p), gradient in zip(module.named_parameters(), gradients, strict=True):
            torch.testing.assert_close(stacked[name][place], p.detach() - 0.3 * gradient, rtol=1e-6, atol=1e-7)
