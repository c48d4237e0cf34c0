"""The models: their sizes by hand, and initial weights as a function of the seed alone."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from fedappeal.settings.config import ConfigError
from fedappeal.tasks import models


def weights(model: torch.nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def drawn(seed: int) -> torch.Tensor:
    with models.seeded(seed):
        return weights(models.build("mlp", (8,), 3))


@pytest.mark.parametrize(
    ("name", "shape", "count"),
    [
        ("mlp", (1, 28, 28), 784 * 64 + 64 + 64 * 30 + 30 + 30 * 10 + 10),
        ("mlp", (1, 8, 8), 64 * 64 + 64 + 64 * 30 + 30 + 30 * 10 + 10),
        ("logistic", (1, 28, 28), 784 * 10 + 10),
        ("cnn", (1, 28, 28), 16 * 9 + 16 + 32 * 16 * 9 + 32 + 32 * 7 * 7 * 10 + 10),
        ("cnn", (1, 8, 8), 16 * 9 + 16 + 32 * 16 * 9 + 32 + 32 * 2 * 2 * 10 + 10),
    ],
)
def test_parameter_counts(name: str, shape: tuple[int, ...], count: int) -> None:
    model = models.build(name, shape, 10)
    assert len(weights(model)) == count
    assert model(torch.zeros(5, *shape)).shape == (5, 10)


def test_dropout_follows_the_first_hidden_layer_only() -> None:
    layers = [type(layer).__name__ for layer in models.build("mlp", (4,), 2).children()]
    assert layers == ["Flatten", "Linear", "ReLU", "Dropout", "Linear", "ReLU", "Linear"]


def test_a_seed_decides_the_weights() -> None:
    first = drawn(1)
    torch.manual_seed(99)
    assert torch.equal(first, drawn(1))
    assert not torch.equal(first, drawn(2))


def test_torchs_generator_is_left_alone() -> None:
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    drawn(1)
    assert torch.equal(torch.rand(3), expected)


def test_threads_do_not_mix_their_seeds() -> None:
    expected = [drawn(seed) for seed in range(8)]
    with ThreadPoolExecutor(8) as pool:
        for _ in range(5):
            assert all(torch.equal(a, b) for a, b in zip(pool.map(drawn, range(8)), expected, strict=True))


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"model = 'resnet' is not allowed: choose from mlp, logistic, cnn"):
        models.build("resnet", (1, 28, 28), 10)
    with pytest.raises(ConfigError, match=r"model = 'cnn' is not allowed for inputs of shape \(3,\)"):
        models.build("cnn", (3,), 2)
