"""Small data and models of a program's own."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

Side = tuple[Tensor, Tensor]
LABELS: dict[str, Callable[[Tensor], Tensor]] = {
    "classes": lambda x: (x.sum(dim=1) > 0).long(),
    "numbers": lambda x: x.sum(dim=1, keepdim=True),
}


def side(examples: int, seed: int, labels: str = "classes") -> Side:
    x = torch.randn(examples, 6, generator=torch.Generator().manual_seed(seed))
    return x, LABELS[labels](x)


def pairs(clients: int = 4, labels: str = "classes") -> list[tuple[Side, Side]]:
    return [(side(20, k, labels), side(8, 100 + k, labels)) for k in range(clients)]


class Net(nn.Module):
    """Two linear layers in a class of their own."""

    def __init__(self, outputs: int = 2) -> None:
        super().__init__()
        self.hidden = nn.Linear(6, 8)
        self.output = nn.Linear(8, outputs)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.output(self.hidden(x).relu())
        return out


QUICK: dict[str, Any] = {"rounds": 3, "local_steps": 2, "batch_size": 8, "set": {"solo.steps": 3}, "quiet": True}
"""Settings of a run of a tenth of a second."""


def losses(run: Any) -> Sequence[float]:
    found: Sequence[float] = run.history["loss"].tolist()
    return found


@pytest.fixture
def in_folder(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the test in an empty folder."""
    monkeypatch.chdir(tmp_path)
