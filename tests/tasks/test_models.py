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


class Given(torch.nn.Linear):
    def __init__(self, num_classes: int, *, input_shape: tuple[int, ...], more: int = 1) -> None:
        super().__init__(input_shape[0], num_classes)


def wrong(input_shape: tuple[int, ...]) -> torch.nn.Module:
    raise RuntimeError(f"not for {input_shape}")


def nothing() -> str:
    return "net"


def needs(width: int) -> None: ...


NET = torch.nn.Linear(1, 1)


def test_a_model_of_ones_own_is_given_shape_and_classes_where_it_takes_them() -> None:
    net = models.build(f"{__name__}:Given", (3,), 5)
    assert isinstance(net, Given)
    assert (net.in_features, net.out_features) == (3, 5)


@pytest.mark.parametrize("name", ["torchvision:resnet18", "transformers:mobilenet_v2"])
def test_a_librarys_model_is_drawn_for_the_tasks_images_and_classes(name: str) -> None:
    def made(seed: int) -> torch.nn.Module:
        with models.seeded(seed):
            return models.build(name, (1, 32, 32), 7)

    net = made(1)
    assert net.eval()(torch.rand(2, 1, 32, 32)).shape == (2, 7)
    assert torch.equal(weights(net), weights(made(1)))
    assert not torch.equal(weights(net), weights(made(2)))


@pytest.mark.parametrize(
    ("name", "shape", "said"),
    [
        ("resnet", (1, 28, 28), "mlp, logistic, cnn, torchvision:NAME, transformers:NAME, or package.module:Name of"),
        ("cnn", (3,), r"for inputs of shape \(3,\)"),
        ("torchvision:resnet188", (3, 28, 28), "torchvision has no such classifier; did you mean 'resnet18'?"),
        ("torchvision:resnet18", (60,), r"for inputs of shape \(60,\): it classifies images"),
        ("transformers:vti", (3, 28, 28), "transformers has no such family"),
        ("transformers:bert", (3, 28, 28), "no classifier of these images"),
        (f"{__name__}:NET", (3,), "Linear; a class or a function is"),
        (f"{__name__}:nothing", (3,), "it made str, no torch.nn.Module"),
        (f"{__name__}:wrong", (3,), r"RuntimeError: not for \(3,\) \(tests/tasks/test_models.py:\d+\); it is called"),
        (f"{__name__}:needs", (3,), "TypeError: .*'width'; it is called with input_shape and num_classes, where"),
    ],
)
def test_what_does_not_fit_is_refused(name: str, shape: tuple[int, ...], said: str) -> None:
    with pytest.raises(ConfigError, match=f"^model = '{name}' (is not allowed|failed):? ?{said}") as refused:
        models.build(name, shape, 2)
    assert "\n" not in str(refused.value)
