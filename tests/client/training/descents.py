"""A small network and a quadratic to train by hand or by autograd, for tests of local rules."""

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedappeal.core.local_rule import LocalRule
from fedappeal.settings.training import LocalTrainingSettings
from tests.problems import local_problem

X = torch.randn(12, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
Y = torch.randint(0, 3, (12,), generator=torch.Generator().manual_seed(2))
BATCHES = np.random.default_rng(3).integers(0, 12, size=(6, 4))
SETTINGS: list[dict[str, float]] = [
    {},
    {"momentum": 0.8},
    {"weight-decay": 0.05},
    {"momentum": 0.8, "weight-decay": 0.05},
]


def network() -> nn.Sequential:
    torch.manual_seed(4)
    return nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3)).double()


def corrections(model: nn.Module, scale: float = 0.1) -> list[Tensor]:
    generator = torch.Generator().manual_seed(5)
    return [scale * torch.randn(p.shape, generator=generator, dtype=p.dtype) for p in model.parameters()]


def training(batches: NDArray[np.int64] = BATCHES, **settings: float) -> LocalTrainingSettings:
    plain = {"learning-rate": 0.3, "batch-size": 4, "local-steps": len(batches)}
    return LocalTrainingSettings.parse({**plain, **settings})


def after(rule: LocalRule, batches: NDArray[np.int64] = BATCHES, **settings: float) -> Tensor:
    """All parameters of the network after training by a rule."""
    model = network()
    rule.train(model, local_problem(nn.functional.cross_entropy, X, Y, batches, training(batches, **settings)))
    return flat(model)


def flat(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


def by_autograd(mu: float, correction: bool = False, momentum: float = 0.0, weight_decay: float = 0.0) -> Tensor:
    """torch.optim.SGD on the objective written out: F + mu/2 ||w - w_t||^2 + <c - c_i, w>."""
    model = network()
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


def torchs(settings: dict[str, float]) -> dict[str, float]:
    return {key.replace("-", "_"): value for key, value in settings.items()}


class Quadratic(nn.Module):
    """Predicts the parameter w, whatever x is."""

    def __init__(self, w: float) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor([w], dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return self.w.expand(len(x))


def half_square(h: float = 1.0) -> Callable[[Tensor, Tensor], Tensor]:
    """The loss ``h/2 (w - a)^2``, a mean over the targets a."""
    return lambda prediction, a: h * ((prediction - a) ** 2).mean() / 2


def descended(
    rule: LocalRule,
    w: float,
    batches: list[list[int]],
    settings: LocalTrainingSettings,
    h: float = 1.0,
    targets: tuple[float, ...] = (0.0, 2.0, 4.0),
) -> float:
    """w after training on f(w) = h/2 (w - a)^2, where a batch has a = the mean of its targets."""
    model, y = Quadratic(w), torch.tensor(targets, dtype=torch.float64)
    indices = np.array(batches, dtype=np.int64).reshape(len(batches), -1 if batches else 1)
    rule.train(model, local_problem(half_square(h), torch.zeros(len(y), 1), y, indices, settings))
    return model.w.item()
