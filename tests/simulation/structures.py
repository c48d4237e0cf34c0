"""Tasks of every kind of inputs and labels, each with a model that no chain of layers describes."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedappeal.protocol.metric import Metric
from fedappeal.tasks.models import seeded
from fedappeal.tasks.task import ClientData, Split, Structure, Task

EXAMPLES = (12, 12, 12, 12, 5, 12)
"""Training examples of each client: one has fewer than a minibatch."""


class Skipping(nn.Module):
    """A perceptron that adds its input to its hidden layer."""

    def __init__(self, outputs: int = 3) -> None:
        super().__init__()
        self.hidden, self.last = nn.Linear(6, 6), nn.Linear(6, outputs)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.last(x + torch.tanh(self.hidden(x)))
        return y


class GroupNormed(nn.Module):
    """Convolutions and group normalisation; ``pixels``: an output for each pixel."""

    def __init__(self, pixels: bool = False) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(2, 4, 3, padding=1, bias=False), nn.GroupNorm(2, 4)
        self.second = nn.Conv2d(4, 3, 1)
        self.pixels = pixels

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.second(functional.gelu(self.norm(self.first(x))))
        return y if self.pixels else y.mean((2, 3))


class Encoder(nn.Module):
    """A transformer over named inputs, with a label a token and shared embeddings."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, 8)
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.last = nn.Linear(8, 7, bias=False)
        self.last.weight = self.embedding.weight

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        y: Tensor = self.last(self.encoder(self.embedding(tokens), src_key_padding_mask=mask))
        return y


class Frozen(nn.Module):
    """A frozen layer with a buffer below one that is trained."""

    scale: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.below, self.last = nn.Linear(6, 6).requires_grad_(False), nn.Linear(6, 3)
        self.register_buffer("scale", torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0, 6.0]))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.last(functional.relu(self.below(x / self.scale)))
        return y


class Structured(Task):
    """Random examples of six clients; derived classes say of what form."""

    def build(self) -> nn.Module:
        """Return the model."""
        return Skipping()

    def examples(self, count: int, draws: torch.Generator) -> tuple[Structure, Structure]:
        """Return inputs and labels."""
        return torch.randn(count, 6, generator=draws), torch.randint(0, 3, (count,), generator=draws)

    def initial_model(self, seed: int) -> nn.Module:
        with seeded(seed):
            return self.build()

    def load(self, client: int) -> ClientData:
        draws = torch.Generator().manual_seed(client)
        return ClientData(Split(*self.examples(EXAMPLES[client], draws)), Split(*self.examples(4, draws)))


class Classes(Structured):
    """Class labels."""


class Images(Structured):
    """Class labels of images."""

    def build(self) -> nn.Module:
        return GroupNormed()

    def examples(self, count: int, draws: torch.Generator) -> tuple[Structure, Structure]:
        return torch.randn(count, 2, 5, 5, generator=draws), torch.randint(0, 3, (count,), generator=draws)


class Regression(Structured):
    """A number an example; two inputs in a tuple."""

    metric = Metric("mse", higher_is_better=False)

    def build(self) -> nn.Module:
        return Skipping(1)

    def examples(self, count: int, draws: torch.Generator) -> tuple[Structure, Structure]:
        halves = torch.randn(count, 3, generator=draws), torch.randn(count, 3, generator=draws)
        return halves, torch.randn(count, generator=draws)

    def forward(self, model: nn.Module, x: Structure) -> Any:
        return model(torch.cat(list(x), dim=1)).squeeze(1)  # type: ignore[arg-type]

    def loss(self, outputs: Any, y: Any, reduction: str = "mean") -> Tensor:
        return functional.mse_loss(outputs, y, reduction=reduction)

    def metrics(self, outputs: Any, y: Any) -> dict[str, float]:
        return {"mse": functional.mse_loss(outputs, y).item()}


class Labels(Structured):
    """Several labels an example."""

    def examples(self, count: int, draws: torch.Generator) -> tuple[Structure, Structure]:
        return torch.randn(count, 6, generator=draws), torch.randint(0, 2, (count, 3), generator=draws).float()

    def loss(self, outputs: Any, y: Any, reduction: str = "mean") -> Tensor:
        mean = functional.binary_cross_entropy_with_logits(outputs, y)
        return mean * len(y) if reduction == "sum" else mean

    def metrics(self, outputs: Any, y: Any) -> dict[str, float]:
        return {"accuracy": ((outputs > 0) == (y > 0)).double().mean().item()}


class Positions(Structured):
    """A label at each of several positions: cross-entropy over all of them."""

    def loss(self, outputs: Any, y: Any, reduction: str = "mean") -> Tensor:
        mean = functional.cross_entropy(outputs, y)
        return mean * len(y) if reduction == "sum" else mean


class Tokens(Positions):
    """A label a token; named inputs, one of them a mask."""

    def build(self) -> nn.Module:
        return Encoder()

    def examples(self, count: int, draws: torch.Generator) -> tuple[Structure, Structure]:
        tokens = torch.randint(0, 7, (count, 5), generator=draws)
        mask = torch.zeros(count, 5, dtype=torch.bool)
        mask[::2, 3:] = True
        return {"tokens": tokens, "mask": mask}, torch.randint(0, 7, (count, 5), generator=draws)

    def forward(self, model: nn.Module, x: Structure) -> Any:
        return super().forward(model, x).transpose(1, 2)


class Pixels(Positions):
    """A label a pixel."""

    def build(self) -> nn.Module:
        return GroupNormed(pixels=True)

    def examples(self, count: int, draws: torch.Generator) -> tuple[Structure, Structure]:
        return torch.randn(count, 2, 5, 5, generator=draws), torch.randint(0, 3, (count, 5, 5), generator=draws)


class FrozenBelow(Structured):
    """Class labels; a part of the model is not trained."""

    def build(self) -> nn.Module:
        return Frozen()


TASKS: tuple[type[Structured], ...] = (Classes, Images, Regression, Labels, Tokens, Pixels, FrozenBelow)
