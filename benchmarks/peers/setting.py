"""What both peers share: a run's setting with its model and data, how batches are drawn, the clock, the result."""

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn


def asked() -> SimpleNamespace:
    """Return the setting that the command line names: the file that `benchmarks/simulation.py` wrote."""
    torch.set_num_threads(1)
    return SimpleNamespace(**torch.load(sys.argv[1], weights_only=False))  # nosec B614 # the benchmark wrote it


def drawn(examples: int, steps: int, batch_size: int) -> tuple[Tensor, ...]:
    """Draw the rows of each step's batch: one random order after another, cut into batches of equal size."""
    size = min(batch_size, examples)
    orders = [torch.randperm(examples) for _ in range(-(-steps * size // examples))]
    return torch.cat(orders)[: steps * size].split(size)


@dataclass
class Rounds:
    """Seconds and CPU seconds of every round, its evaluation included, and the seconds before the first."""

    started: float
    start: float = 0.0
    seconds: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)

    def begin(self) -> None:
        """Begin a round."""
        self._cpu_then, self._then = time.process_time(), time.perf_counter()
        self.start = self.start or self._then - self.started

    def end(self) -> None:
        """End it."""
        self.seconds.append(time.perf_counter() - self._then)
        self.cpu.append(time.process_time() - self._cpu_then)

    def report(self, package: str, model: nn.Module, test: Sequence[tuple[Tensor, Tensor]]) -> None:
        """Print what was measured as a line of JSON."""
        model.eval()
        with torch.no_grad():
            correct = sum(int((model(x).argmax(1) == y).sum()) for x, y in test)
        figures: dict[str, Any] = {"s": self.seconds, "CPU s": self.cpu, "start s": self.start}
        figures |= {"accuracy": correct / sum(len(y) for _, y in test), "version": f"{package} {version(package)}"}
        print(json.dumps(figures), flush=True)
