"""Tasks of generated pixels with the shapes, clients and models of others' published benchmarks.

Data of another's benchmark cannot be downloaded everywhere, and its values do not matter to speed: an image here is
its class's pattern under noise, a pure function of the seed.
"""

from collections import OrderedDict

import torch
from torch import nn

from fedappeal.protocol.draws import generator
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
