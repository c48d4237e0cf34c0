"""Models of the sweep: one with draws of its own, one with batch normalisation, one that is no chain of layers."""

import torch
from torch import Tensor, nn
from torch.nn import functional


class Normed(nn.Sequential):
    """Batch normalisation, whose running means every step changes, and dropout."""

    def __init__(self, inputs: int = 64, classes: int = 10) -> None:
        super().__init__(
            nn.Flatten(),
            nn.Linear(inputs, 16),
            nn.BatchNorm1d(16),
            nn.ReLU(),
            nn.Dropout(0.3),
            nn.Linear(16, classes),
        )


class Skipping(nn.Module):
    """A skip connection, with dropout by module and by function."""

    def __init__(self, inputs: int = 64, classes: int = 10) -> None:
        super().__init__()
        self.first, self.inner, self.last = nn.Linear(inputs, 16), nn.Linear(16, 16), nn.Linear(16, classes)
        self.drop = nn.Dropout(0.2)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.drop(functional.gelu(self.first(x.flatten(1))))
        hidden = hidden + functional.dropout(torch.tanh(self.inner(hidden)), 0.4, self.training)
        y: Tensor = self.last(hidden)
        return y


class Jittered(nn.Sequential):
    """Adds noise of its own, which no form but one by one gives."""

    def __init__(self, inputs: int = 64, classes: int = 10) -> None:
        super().__init__(nn.Flatten(), nn.Linear(inputs, classes))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = super().forward(x + 0.05 * torch.randn_like(x) if self.training else x)
        return y
