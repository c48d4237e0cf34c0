"""Models of the benchmarks' rows, and a task of random examples for each."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedappeal.tasks.examples import ClientData, Split
from fedappeal.tasks.task import Task

EXAMPLES = 64
"""Training examples of a client."""


class OwnMLP(nn.Module):
    """The papers' multi-layer perceptron, as a user writes it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(784, 64), nn.Linear(64, 30), nn.Linear(30, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits."""
        x = functional.relu(self.first(x.view(x.size(0), -1)))
        y: Tensor = self.last(functional.relu(self.second(x)))
        return y


def sequential_mlp() -> nn.Module:
    """Return its twin of listed layers."""
    hidden = [nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 30), nn.ReLU()]
    return nn.Sequential(nn.Flatten(), *hidden, nn.Linear(30, 10))


class SkippingMLP(OwnMLP):
    """The same layers with a sum in the forward pass: no chain, so that vmap has to do it."""

    def forward(self, x: Tensor) -> Tensor:
        """Return logits."""
        x = functional.relu(self.first(x.flatten(1)))
        hidden = functional.relu(self.second(x))
        y: Tensor = self.last(hidden + x[:, :30])
        return y


class CNN(nn.Module):
    """Two 3x3 convolutions of 16 and 32 channels."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 16, 3, padding=1), nn.Conv2d(16, 32, 3, padding=1)
        self.last = nn.Linear(32 * 7 * 7, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits."""
        x = functional.max_pool2d(functional.relu(self.first(x)), 2)
        x = functional.max_pool2d(functional.relu(self.second(x)), 2)
        y: Tensor = self.last(x.flatten(1))
        return y


class Transformer(nn.Module):
    """Two encoder layers of width 32 over 16 tokens, which predict the next one."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(100, 32)
        layer = nn.TransformerEncoderLayer(32, 2, 64, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.last = nn.Linear(32, 100)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits."""
        y: Tensor = self.last(self.encoder(self.embedding(x))[:, -1])
        return y


class LSTM(nn.Module):
    """One LSTM of width 32 over 16 tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.recurrent = nn.Embedding(100, 16), nn.LSTM(16, 32, batch_first=True)
        self.last = nn.Linear(32, 100)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits."""
        y: Tensor = self.last(self.recurrent(self.embedding(x))[0][:, -1])
        return y


class Block(nn.Module):
    """ResNet's basic block, with group normalisation."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList([nn.GroupNorm(2, outputs), nn.GroupNorm(2, outputs)])
        same = stride == 1 and inputs == outputs
        self.short: nn.Module = nn.Identity() if same else nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return activations."""
        y = self.norms[1](self.second(functional.relu(self.norms[0](self.first(x)))))
        return functional.relu(y + self.short(x))


class ResNet18(nn.Module):
    """ResNet-18 for small images, with group normalisation."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.GroupNorm(2, 64)
        widths = [(64, 64, 1), (64, 64, 1), (64, 128, 2), (128, 128, 1)]
        widths += [(128, 256, 2), (256, 256, 1), (256, 512, 2), (512, 512, 1)]
        self.blocks = nn.Sequential(*[Block(*width) for width in widths])
        self.last = nn.Linear(512, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits."""
        x = self.blocks(functional.relu(self.norm(self.first(x))))
        y: Tensor = self.last(x.mean((2, 3)))
        return y


SHAPES: dict[str, tuple[tuple[int, ...], int, int, int]] = {
    "CNN": ((1, 28, 28), 10, 32, 2),
    "Transformer": ((), 100, 16, 5),
    "LSTM": ((), 100, 16, 5),
    "ResNet18": ((3, 16, 16), 10, 8, 1),
}
"""Shape of an example (empty: 16 tokens), classes, examples a minibatch, local steps."""


class Given(Task):
    """Random examples, and one of the models.

    Args:
        name: what makes the model, in this module.
    """

    def __init__(self, name: str) -> None:
        self.build = globals()[name]
        self.input_shape, self.num_classes, self.batch, self.steps = SHAPES.get(name, ((1, 28, 28), 10, 32, 10))

    def initial_model(self, seed: int) -> nn.Module:
        """Return the model."""
        torch.manual_seed(seed)
        model: nn.Module = self.build()
        return model

    def load(self, client: int) -> ClientData:
        """Return one client's data."""
        draws = torch.Generator().manual_seed(client)
        y = torch.randint(0, self.num_classes, (EXAMPLES,), generator=draws)
        if self.input_shape:
            x = torch.randn(EXAMPLES, *self.input_shape, generator=draws)
        else:
            x = torch.randint(0, self.num_classes, (EXAMPLES, 16), generator=draws)
        return ClientData(Split(x, y), Split(x[:1], y[:1]))
