"""The rules that descend on the loss, against autograd of the objective written out, and against torch's own SGD."""

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from client.descent import prox, scaffold, sgd
from client.rules import RULES
from client.work import LocalRule, LocalWork

X = torch.randn(12, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
Y = torch.randint(0, 3, (12,), generator=torch.Generator().manual_seed(2))
BATCHES = np.random.default_rng(3).integers(0, 12, size=(6, 4))


def fresh() -> nn.Sequential:
    torch.manual_seed(4)
    return nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3)).double()


def corrections(model: nn.Module, scale: float = 0.1) -> list[Tensor]:
    generator = torch.Generator().manual_seed(5)
    return [scale * torch.randn(p.shape, generator=generator, dtype=p.dtype) for p in model.parameters()]


def after(
    rule: LocalRule, batches: NDArray[np.int64] = BATCHES, correction: bool = False, **settings: float
) -> Tensor:
    model = fresh()
    work = LocalWork.parse({"learning-rate": 0.3, "batch-size": 4, "local-steps": len(batches), **settings})
    rule(model, nn.functional.cross_entropy, X, Y, batches, work, corrections(model) if correction else ())
    return flat(model)


def flat(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


def by_autograd(mu: float, correction: bool = False, momentum: float = 0.0, weight_decay: float = 0.0) -> Tensor:
    """torch.optim.SGD on the objective written out: F + mu/2 ||w - w_t||^2 + <c - c_i, w>."""
    model = fresh()
    start = [p.detach().clone() for p in model.parameters()]
    optimiser = torch.optim.SGD(model.parameters(), lr=0.3, momentum=momentum, weight_decay=weight_decay)
    for batch in torch.from_numpy(BATCHES):
        objective = nn.functional.cross_entropy(model(X[batch]), Y[batch])
        objective = objective + mu / 2 * sum(
            ((p - s) ** 2).sum() for p, s in zip(model.parameters(), start, strict=True)
        )
        if correction:
            pairs = zip(corrections(model), model.parameters(), strict=True)
            objective = objective + sum((c * p).sum() for c, p in pairs)
        optimiser.zero_grad()
        objective.backward()
        optimiser.step()
    return flat(model)


SETTINGS = [{}, {"momentum": 0.8}, {"weight-decay": 0.05}, {"momentum": 0.8, "weight-decay": 0.05}]


def torchs(settings: dict[str, float]) -> dict[str, float]:
    return {key.replace("-", "_"): value for key, value in settings.items()}


@pytest.mark.parametrize("settings", SETTINGS)
def test_prox_descends_on_the_written_out_objective(settings: dict[str, float]) -> None:
    # Six steps: from the second on the model is away from w_t, where the term's gradient is not zero.
    got = after(prox, **{"proximal-mu": 0.7}, **settings)
    torch.testing.assert_close(got, by_autograd(0.7, **torchs(settings)), rtol=1e-12, atol=1e-14)
    assert (got - after(sgd, **settings)).norm() > 1e-3


def test_the_proximal_term_is_of_squared_norms_by_hand() -> None:
    # F = 0: w moves by the correction alone, then w_1 = 1 - 0.5 * 4 = -1, and
    # w_2 = w_1 - 0.5 * (4 + mu (w_1 - 1)) = -1 - 0.5 * (4 - 1 * 2) = -2; an unsquared norm would give -2.75.
    model = nn.Linear(1, 1, bias=False).double()
    nn.init.constant_(model.weight, 1.0)
    work = LocalWork(learning_rate=0.5, batch_size=1, local_steps=2, proximal_mu=1.0)
    batches = np.zeros((2, 1), dtype=np.int64)
    four = [torch.full((1, 1), 4.0, dtype=torch.float64)]
    prox(model, lambda out, y: 0 * out.sum(), X[:, :1], Y, batches, work, four)
    assert model.weight.item() == pytest.approx(-2.0, rel=1e-15)


@pytest.mark.parametrize("settings", SETTINGS)
def test_mu_zero_is_sgd_to_the_bit(settings: dict[str, float]) -> None:
    assert torch.equal(after(prox, **{"proximal-mu": 0.0}, **settings), after(sgd, **settings))


def test_the_first_step_of_prox_is_that_of_sgd() -> None:
    assert torch.equal(after(prox, BATCHES[:1], **{"proximal-mu": 9.0}), after(sgd, BATCHES[:1]))


@pytest.mark.parametrize("rule", [sgd, prox, scaffold])
@pytest.mark.parametrize("settings", SETTINGS)
def test_a_correction_is_added_to_every_gradient(rule: LocalRule, settings: dict[str, float]) -> None:
    got = after(rule, correction=True, **{"proximal-mu": 0.4}, **settings)
    expected = by_autograd(0.4 if rule is prox else 0.0, correction=True, **torchs(settings))
    torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-14)


def test_scaffold_without_a_correction_for_each_parameter_is_an_error() -> None:
    with pytest.raises(ValueError, match="0 tensors, the model 4 parameters"):
        after(scaffold)


def test_a_frozen_parameter_stays_and_takes_no_correction() -> None:
    model = fresh()
    frozen = next(iter(model.parameters())).requires_grad_(False)
    before = frozen.clone()
    work = LocalWork(learning_rate=0.3, batch_size=4, local_steps=6, proximal_mu=0.5)
    scaffold(model, nn.functional.cross_entropy, X, Y, BATCHES, work, corrections(model)[1:])
    prox(model, nn.functional.cross_entropy, X, Y, BATCHES, work)
    assert torch.equal(frozen, before)


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
    ours, torchs_own = TwoBiases(), TwoBiases()
    start = [p.detach().clone() for p in torchs_own.parameters()]
    work = LocalWork.parse({"learning-rate": 0.3, "batch-size": 4, "local-steps": 6, "proximal-mu": mu, **settings})
    prox(ours, nn.functional.cross_entropy, X, Y, BATCHES, work)
    optimiser = torch.optim.SGD(torchs_own.parameters(), lr=0.3, **torchs(settings))  # type: ignore[arg-type]
    for batch in torch.from_numpy(BATCHES):
        optimiser.zero_grad()
        nn.functional.cross_entropy(torchs_own(X[batch]), Y[batch]).backward()
        for p, s in zip(torchs_own.parameters(), start, strict=True):
            assert p.grad is not None
            p.grad = p.grad + mu * (p.detach() - s)
        optimiser.step()
    torch.testing.assert_close(flat(ours), flat(torchs_own), rtol=1e-12, atol=1e-14)


def test_the_rules_have_their_names() -> None:
    assert {"sgd": sgd, "prox": prox, "scaffold": scaffold}.items() <= RULES.items()
