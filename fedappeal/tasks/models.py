"""The models: the papers' multi-layer perceptron, logistic regression, a small CNN; a library's, and an author's."""

import inspect
import math
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from fedappeal.core.places import reason
from fedappeal.protocol.draws import TORCH_GENERATOR, draw_seed
from fedappeal.settings.config import ConfigError
from fedappeal.settings.model import did_you_mean
from fedappeal.tasks import LIBRARIES, MODELS

DROPOUT = 0.2
"""MaxFL's appendix D.1 names a dropout layer, but not its rate."""


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed torch's global CPU generator for initial weights, and restore it afterwards.

    ``torch.random.fork_rng`` with ``torch.manual_seed`` would reseed the accelerator's generators as well.
    """
    with TORCH_GENERATOR:
        before = torch.default_generator.get_state()
        torch.default_generator.manual_seed(draw_seed(seed, "initial-model"))
        try:
            yield
        finally:
            torch.default_generator.set_state(before)


def build(name: str, input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """Return a model with freshly drawn weights (see `seeded`) that maps ``(n, *input_shape)`` to logits.

    Args:
        name: one of `MODELS`, ``torchvision:NAME``, ``transformers:NAME``, or ``package.module:Name``.
        input_shape: shape of one example; the cnn takes ``(channels, height, width)`` of 4x4 or more.
        num_classes: number of logits.

    Raises:
        ConfigError: an unknown model, one that does not fit the shape, or one that cannot be made.
    """
    if name == "mlp":
        return mlp(math.prod(input_shape), num_classes)
    if name == "logistic":
        return logistic(math.prod(input_shape), num_classes)
    if name == "cnn":
        return cnn(input_shape, num_classes)
    library, _, of_library = name.partition(":")
    if library in LIBRARIES.built_in:
        module: nn.Module = LIBRARIES.find(library)(of_library, input_shape, num_classes)
        return module
    model = make_module(MODELS.maker(name), repr(name), input_shape, num_classes)
    materialise(model, repr(name), lambda: model(torch.zeros(2, *input_shape)))
    return model


def is_lazy(module: nn.Module) -> bool:
    """Whether a module has layers that get their shapes from the first inputs."""
    return any(map(nn.parameter.is_lazy, (*module.parameters(), *module.buffers())))


def materialise(module: nn.Module, name: str, call: Callable[[], object]) -> None:
    """Give lazy layers their shapes and weights; the caller has seeded torch's generator.

    Args:
        module: the module, whose mode and other weights stay as they are.
        name: what a message calls it.
        call: calls it with some inputs.

    Raises:
        ConfigError: the call failed, or left a layer without a shape.
    """
    if not is_lazy(module):
        return
    training = module.training
    try:
        with torch.no_grad():
            module.eval()
            call()
    except Exception as error:
        raise ConfigError(f"model = {name} failed with the first examples: {reason(error)}") from error
    if is_lazy(module):
        raise ConfigError(f"model = {name} is not allowed: it calls not all of its lazy layers")
    module.train(training)


def make_module(make: Any, name: str, input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """Return a class's or function's module.

    It is called with those of the last two arguments that it takes.

    Raises:
        ConfigError: one line: it is neither, failed, or made no module.
    """
    if isinstance(make, nn.Module) or not callable(make):
        raise ConfigError(f"model = {name} is not allowed: {type(make).__name__}; a class or a function is")
    try:
        taken = inspect.signature(make).parameters
        sizes = {"input_shape": input_shape, "num_classes": num_classes}
        module = make(**{key: value for key, value in sizes.items() if key in taken})
    except Exception as error:
        raise ConfigError(
            f"model = {name} failed: {reason(error)}; it is called with input_shape and num_classes, where it takes "
            "them, and nothing else"
        ) from error
    if not isinstance(module, nn.Module):
        raise ConfigError(f"model = {name} is not allowed: it made {type(module).__name__}, no torch.nn.Module")
    return module


def of_torchvision(name: str, input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """Return a classifier of torchvision's with random weights, whose first convolution takes the task's channels.

    Raises:
        ConfigError: one line: no classifier of that name, or inputs that are no images.
    """
    from torchvision import models

    names = models.list_models(module=models)
    if name not in names:
        hint = did_you_mean(name, names)
        raise ConfigError(f"model = 'torchvision:{name}' is not allowed: torchvision has no such classifier{hint}")
    check_images(f"torchvision:{name}", input_shape)
    model: nn.Module = models.get_model(name, weights=None, num_classes=num_classes)
    first: Any
    path, first = next((path, part) for path, part in model.named_modules() if isinstance(part, nn.Conv2d))
    if first.in_channels != (channels := input_shape[0]):
        form = first.out_channels, first.kernel_size, first.stride, first.padding
        model.set_submodule(path, nn.Conv2d(channels, *form, bias=first.bias is not None))
    return model


def check_images(name: str, input_shape: tuple[int, ...]) -> None:
    """Check that a model of images gets images.

    Raises:
        ConfigError: one line: it does not.
    """
    if len(input_shape) != 3:
        raise ConfigError(f"model = '{name}' is not allowed for inputs of shape {input_shape}: it classifies images")


def mlp(
    inputs: int, num_classes: int, hidden: Sequence[int] = (64, 30), dropout: float | None = DROPOUT
) -> nn.Module:
    """Multi-layer perceptron; by default MaxFL's for images (appendix D.1), of 64 and 30 hidden units.

    Args:
        inputs: number of features.
        num_classes: number of logits.
        hidden: units of each hidden layer.
        dropout: rate after the first hidden layer; None: no such layer.
    """
    layers: OrderedDict[str, nn.Module] = OrderedDict(flatten=nn.Flatten())
    before = inputs
    for k, units in enumerate(hidden, start=1):
        layers[f"hidden{k}"] = nn.Linear(before, units)
        layers[f"relu{k}"] = nn.ReLU()
        if k == 1 and dropout is not None:
            layers["dropout"] = nn.Dropout(dropout)
        before = units
    layers["output"] = nn.Linear(before, num_classes)
    return nn.Sequential(layers)


def logistic(inputs: int, num_classes: int) -> nn.Module:
    """Multinomial logistic regression: convex, which FedALIGN's and ADA-GD's theory asks for."""
    return nn.Sequential(OrderedDict(flatten=nn.Flatten(), output=nn.Linear(inputs, num_classes)))


def cnn(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """Two 3x3 convolutions (16 and 32 channels), each pooled by 2, and a linear layer."""
    if len(input_shape) != 3 or min(input_shape[1:]) < 4:
        raise ConfigError(
            f"model = 'cnn' is not allowed for inputs of shape {input_shape}: "
            f"it takes (channels, height, width) of 4x4 or more"
        )
    channels, height, width = input_shape
    return nn.Sequential(
        OrderedDict(
            conv1=nn.Conv2d(channels, 16, 3, padding=1),
            relu1=nn.ReLU(),
            pool1=nn.MaxPool2d(2),
            conv2=nn.Conv2d(16, 32, 3, padding=1),
            relu2=nn.ReLU(),
            pool2=nn.MaxPool2d(2),
            flatten=nn.Flatten(),
            output=nn.Linear(32 * (height // 4) * (width // 4), num_classes),
        )
    )
