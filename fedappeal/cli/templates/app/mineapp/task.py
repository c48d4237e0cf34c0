"""Model, data, training and test: nothing here knows of volunteers."""

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

Examples = tuple[Tensor, Tensor]


class Net(nn.Module):
    """One hidden layer for images of 8 x 8."""

    def __init__(self) -> None:
        """Make the layers."""
        super().__init__()
        self.hidden = nn.Linear(64, 32)
        self.output = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits, (n, 10), of images, (n, 64)."""
        logits: Tensor = self.output(self.hidden(x).relu())
        return logits


def load_data(partition_id: int, num_partitions: int) -> tuple[Examples, Examples]:
    """Return a client's training and test examples: its own share of each digit."""
    images, labels = load_digits(return_X_y=True)
    draw = np.random.default_rng(0)
    shares = draw.dirichlet(np.full(num_partitions, 2.0), size=10)
    rows = []
    for digit, share in enumerate(shares):
        of_digit = draw.permutation(np.flatnonzero(labels == digit))
        rows.append(np.split(of_digit, np.round(np.cumsum(share)[:-1] * len(of_digit)).astype(int))[partition_id])
    own = np.random.default_rng(partition_id).permutation(np.concatenate(rows))
    x, y = torch.tensor(images[own] / 16, dtype=torch.float32), torch.tensor(labels[own])
    cut = max(1, len(own) * 3 // 4)
    return (x[:cut], y[:cut]), (x[cut:], y[cut:]) if cut < len(own) else (x, y)


def train(net: Net, data: Examples, epochs: int, learning_rate: float) -> float:
    """Train a model; return the mean loss of the last epoch."""
    optimizer = torch.optim.SGD(net.parameters(), lr=learning_rate)
    net.train()
    losses = [0.0]
    for _ in range(epochs):
        losses = []
        for batch in torch.randperm(len(data[0])).split(16):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(net(data[0][batch]), data[1][batch])
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return sum(losses) / len(losses)


@torch.no_grad()
def test(net: Net, data: Examples) -> tuple[float, float]:
    """Return loss and accuracy of a model."""
    net.eval()
    logits = net(data[0])
    accuracy = (logits.argmax(1) == data[1]).float().mean().item()
    return nn.functional.cross_entropy(logits, data[1]).item(), accuracy


def initial() -> dict[str, Tensor]:
    """Return w_0, for `fedappeal simulate --app mineapp.client_app:app --arrays mineapp.task:initial`."""
    torch.manual_seed(0)
    return Net().state_dict()
