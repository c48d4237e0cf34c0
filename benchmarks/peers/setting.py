"""What both peers share: a run's setting, its data, the models, how batches are drawn, the clock, the result."""

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

Examples = tuple[Tensor, Tensor]


def asked(description: str | None) -> argparse.Namespace:
    """Return the setting of a run from the command line."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("--model", choices=("mlp", "logistic", "cnn", "cifar-pixels"), default="mlp")
    for name, value in (("clients-per-round", 5), ("rounds", 20), ("local-steps", 30), ("batch-size", 32)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--learning-rate", type=float, default=0.1)
    parser.add_argument("--evaluate-every", type=int, default=0, help="rounds; 0: never")
    parser.add_argument("--seed", type=int, default=0)
    torch.set_num_threads(1)
    return parser.parse_args()


def layers(name: str, shape: tuple[int, ...], num_classes: int) -> list[nn.Module]:
    """Return the layers of the benchmark's models for examples of one shape (channels, height, width)."""
    channels, height, width = shape
    inputs = channels * height * width
    if name == "mlp":
        hidden = [nn.Linear(inputs, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 30), nn.ReLU()]
        return [nn.Flatten(), *hidden, nn.Linear(30, num_classes)]
    if name == "logistic":
        return [nn.Flatten(), nn.Linear(inputs, num_classes)]
    if name == "cifar-pixels":
        return [
            *(nn.Conv2d(channels, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU()),
            *(nn.MaxPool2d(2), nn.Dropout(0.25), nn.Flatten()),
            *(nn.Linear(64 * (height // 2 - 2) * (width // 2 - 2), 128), nn.ReLU(), nn.Dropout(0.5)),
            nn.Linear(128, num_classes),
        ]
    convolutions = [
        *(nn.Conv2d(channels, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
    ]
    return [*convolutions, nn.Flatten(), nn.Linear(32 * (height // 4) * (width // 4), num_classes)]


def read(
    args: argparse.Namespace, model: type[nn.Sequential]
) -> tuple[nn.Sequential, list[Examples], list[Examples]]:
    """Return the initial model, and each client's training and test examples."""
    with np.load(args.data) as file:
        arrays = {name: torch.from_numpy(file[name]) for name in file.files}
    clients = [name[1:] for name in arrays if name.startswith("x")]
    train, test = ([(arrays[f"{x}{k}"], arrays[f"{y}{k}"]) for k in clients] for x, y in (("x", "y"), ("tx", "ty")))
    parameters = [arrays[f"p{i}"] for i in range(sum(name.startswith("p") for name in arrays))]
    made = model(*layers(args.model, tuple(train[0][0].shape[1:]), len(parameters[-1])))
    with torch.no_grad():
        for parameter, initial in zip(made.parameters(), parameters, strict=True):
            parameter.copy_(initial)
    return made, train, test


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

    def report(self, package: str, model: nn.Module, test: Sequence[Examples]) -> None:
        """Print what was measured as a line of JSON."""
        model.eval()
        with torch.no_grad():
            correct = sum(int((model(x).argmax(1) == y).sum()) for x, y in test)
        found: dict[str, Any] = {"s": self.seconds, "CPU s": self.cpu, "start s": self.start}
        found |= {"accuracy": correct / sum(len(y) for _, y in test), "version": f"{package} {version(package)}"}
        print(json.dumps(found), flush=True)
