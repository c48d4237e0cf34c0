"""The benchmarks' own tasks: generated pixels as in others' published benchmarks, and a stack of any size.

Data of another's benchmark cannot be downloaded everywhere, and its values do not matter to speed: an image here is
its class's pattern under noise, a pure function of the seed.
"""

import os
from collections import OrderedDict
from typing import Any

import torch
from torch import nn

from fedappeal.protocol.draws import generator
from fedappeal.protocol.metric import ACCURACY
from fedappeal.tasks.examples import ClientData, Split
from fedappeal.tasks.models import logistic, seeded
from fedappeal.tasks.task import Task


class Pixels(Task):
    """Images of ten classes, of which each client has as many as any other.

    Attributes:
        examples: training and test examples a client.
    """

    num_classes = 10
    examples: tuple[int, int]

    def load(self, client: int) -> ClientData:
        """Return one client's images and labels."""
        patterns = generator(self.settings.seed, "patterns").random((10, *self.input_shape), "float32")
        draw = generator(self.settings.seed, "pixels", client=str(client))
        train, test = self.examples
        y = draw.integers(10, size=train + test)
        x = 0.1 * patterns[y] + 0.9 * draw.random((len(y), *self.input_shape), "float32")
        images = Split(torch.from_numpy(x), torch.from_numpy(y))
        return ClientData(images.take(slice(train)), images.take(slice(train, None)))


class MnistPixels(Pixels):
    """FLUTE's logistic regression on MNIST: 1,000 clients, 60 of its 60,000 training images each."""

    name = "mnist-pixels"
    input_shape = (1, 28, 28)
    examples = (60, 10)

    def initial_model(self, seed: int) -> nn.Module:
        """Return logistic regression."""
        with seeded(seed):
            return logistic(784, self.num_classes)


class CifarPixels(Pixels):
    """pfl-research's CIFAR-10, IID: 1,000 users of 50 training images, a network of two convolutions."""

    name = "cifar-pixels"
    input_shape = (3, 32, 32)
    examples = (50, 10)

    def initial_model(self, seed: int) -> nn.Module:
        """Return the network: 3x3 convolutions of 32 and 64 channels, 128 units; 1.6 million parameters."""
        with seeded(seed):
            return nn.Sequential(
                OrderedDict(
                    conv1=nn.Conv2d(3, 32, 3),
                    relu1=nn.ReLU(),
                    conv2=nn.Conv2d(32, 64, 3),
                    relu2=nn.ReLU(),
                    pool=nn.MaxPool2d(2),
                    dropout1=nn.Dropout(0.25),
                    flatten=nn.Flatten(),
                    hidden=nn.Linear(64 * 14 * 14, 128),
                    relu3=nn.ReLU(),
                    dropout2=nn.Dropout(0.5),
                    output=nn.Linear(128, 10),
                )
            )


WIDTH = "FEDAPPEAL_BENCHMARK_WIDTH"
"""Environment variable: the width of `Stack`, which is no task for others."""
LAYERS = 8


class Stack(Task):
    """Linear layers of one width, and eight examples of noise a client."""

    name = "stack"
    input_shape = (16,)
    num_classes = 10
    metric = ACCURACY

    def initial_model(self, seed: int) -> nn.Module:
        """Return w_0."""
        width = int(os.environ[WIDTH])
        inner = (nn.Linear(width, width, bias=False) for _ in range(LAYERS))
        with seeded(seed):
            return nn.Sequential(nn.Linear(*self.input_shape, width), *inner, nn.Linear(width, self.num_classes))

    def load(self, client: int) -> ClientData:
        """Return a client's examples."""
        x = torch.randn(8, *self.input_shape, generator=torch.Generator().manual_seed(client))
        split = Split(x, torch.arange(8))
        return ClientData(split, split)

    def loss(self, outputs: Any, y: Any, reduction: str = "mean") -> Any:
        """Return the cross entropy."""
        return nn.functional.cross_entropy(outputs, y, reduction=reduction)

    def metrics(self, outputs: Any, y: Any) -> dict[str, float]:
        """Return the accuracy."""
        return {"accuracy": float((outputs.argmax(dim=1) == y).float().mean())}
