"""Local training against the same steps by hand, and the noise of dropout."""

import numpy as np
import pytest
import torch
from torch import nn

from client.descent import sgd
from client.rules import RULES, seeded_noise
from client.work import LocalWork
from fedappeal.protocol.config import ConfigError

CPU = torch.device("cpu")


class Quadratic(nn.Module):
    """Predicts the parameter w, whatever x is."""

    def __init__(self, w: float) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor([w], dtype=torch.float64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.w.expand(len(x))


def half_square(prediction: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return ((prediction - y) ** 2).mean() / 2


def trained(batches: list[list[int]], **settings: float) -> float:
    model = Quadratic(1.0)
    y = torch.tensor([0.0, 2.0, 4.0], dtype=torch.float64)
    work = LocalWork.parse({"learning-rate": 0.5, "batch-size": 2, "local-steps": len(batches), **settings})
    sgd(model, half_square, torch.zeros(3, 1), y, np.array(batches, dtype=np.int64), work)
    return model.w.item()


def test_minibatch_sgd_by_hand() -> None:
    # w = 1: gradient w - mean(y); batch (0, 1): 1 - 1 = 0; batch (1, 2): 1 - 3 = -2, w = 2; batch (0, 0): 2, w = 1
    assert trained([[0, 1]]) == pytest.approx(1.0)
    assert trained([[0, 1], [1, 2]]) == pytest.approx(2.0)
    assert trained([[0, 1], [1, 2], [0, 0]]) == pytest.approx(1.0)


def test_momentum_and_weight_decay_by_hand() -> None:
    # momentum 0.5: v1 = -2, w = 2; v2 = 0.5 * -2 + (2 - 3) = -2, w = 3
    assert trained([[1, 2], [1, 2]], momentum=0.5) == pytest.approx(3.0)
    # weight decay 0.2: g = -2 + 0.2 * 1 = -1.8, w = 1.9; g = -1.1 + 0.38, w = 2.26
    assert trained([[1, 2], [1, 2]], **{"weight-decay": 0.2}) == pytest.approx(2.26)


def test_no_steps_leave_the_model_alone() -> None:
    model = Quadratic(1.0)
    work = LocalWork(learning_rate=0.1, batch_size=2)
    sgd(model, half_square, torch.zeros(3, 1), torch.zeros(3), np.empty((0, 2), dtype=np.int64), work)
    assert model.w.item() == 1.0


@pytest.mark.parametrize(
    ("settings", "examples", "steps"),
    [
        ({"local-steps": 7}, 100, 7),
        ({"local-steps": 7, "local-epochs": 3}, 100, 7),
        ({"local-epochs": 3}, 100, 12),
        ({"local-epochs": 3}, 96, 9),
        ({"local-epochs": 2}, 5, 2),
    ],
)
def test_steps_of_a_round(settings: dict[str, int], examples: int, steps: int) -> None:
    assert LocalWork.parse({"learning-rate": 0.1, "batch-size": 32, **settings}).steps(examples) == steps


def test_settings_come_from_the_first_source_that_has_them() -> None:
    work = LocalWork.of({"learning-rate": 0.5, "server-round": 3}, {"learning-rate": 0.1, "batch-size": 8, "x": 1})
    assert work == LocalWork(learning_rate=0.5, batch_size=8)
    with pytest.raises(ConfigError, match=r"^batch-size is missing$"):
        LocalWork.of({"learning-rate": 0.5})
    with pytest.raises(ConfigError, match="learning-rate = -1 is not allowed"):
        LocalWork.of({"learning-rate": -1, "batch-size": 8})


def noise(*key: object) -> list[float]:
    with seeded_noise(*key, CPU):  # type: ignore[arg-type]
        return torch.rand(3).tolist()


def test_noise_is_a_pure_function_and_leaves_the_global_generator_alone() -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    drawn = [noise(*key) for key in [(0, "a", 1), (0, "a", 1), (1, "a", 1), (0, "b", 1), (0, "a", 2)]]
    assert torch.equal(torch.get_rng_state(), before)
    assert drawn[0] == drawn[1]
    assert len({tuple(d) for d in drawn}) == 4


def test_rules_by_name() -> None:
    assert {"sgd": sgd}.items() <= RULES.items()
