"""What both peers are given: the setting of a run, the models, and how batches are drawn."""

import argparse

import torch
from torch import Tensor, nn


def asked(description: str | None) -> argparse.Namespace:
    """Return the setting of a run from the command line."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("--model", choices=("mlp", "logistic", "cnn", "cifar-pixels"), default="mlp")
    parser.add_argument("--clients-per-round", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--local-steps", type=int, default=30)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--learning-rate", type=float, default=0.1)
    parser.add_argument("--evaluate-every", type=int, default=0, help="rounds; 0: never")
    parser.add_argument("--seed", type=int, default=0)
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


def drawn(examples: int, steps: int, batch_size: int) -> tuple[Tensor, ...]:
    """Draw the rows of each step's batch: one random order after another, cut into batches of equal size."""
    size = min(batch_size, examples)
    orders = [torch.randperm(examples) for _ in range(-(-steps * size // examples))]
    return torch.cat(orders)[: steps * size].split(size)
