"""Recorded runs that Python starts: `fedappeal.simulate` and `sweep`, with names and with a program's own objects."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import nn

import fedappeal
from fedappeal import Run
from strategies.maxfl import MaxFL

SETTINGS: dict[str, Any] = {
    "local_steps": 4,
    "batch_size": 16,
    "set": {"solo.steps": 12},
    "mandatory_rounds": 1,
    "goodwill": 2,
    "threads": 1,
    "quiet": True,
}


class Attention(nn.Module):
    """A model without batched layers of its own: one encoder layer over the rows of an image."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(8, 16)
        self.encoder = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.output = nn.Linear(16, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows: torch.Tensor = self.encoder(self.embed(x.squeeze(1)))
        output: torch.Tensor = self.output(rows.mean(dim=1))
        return output


class Convolution(nn.Module):
    """A small convolutional network, for the form of batched layers."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten())
        self.output = nn.Linear(4 * 3 * 3, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.output(self.features(x))
        return output


def named(out: Path, rounds: int, seed: int) -> Run:
    """Simulate by names alone."""
    return fedappeal.simulate(
        "maxfl", "digits", clients=6, rounds=rounds, seed=seed, mode="layers", out=out, **SETTINGS
    )


def own_model(out: Path, rounds: int, seed: int) -> Run:
    """Simulate a program's own model and data, with an evaluation on the server."""
    images = _images(240, seed)
    return fedappeal.simulate(
        "fedavg",
        model=Convolution,
        data=_clients(images),
        evaluate=images,
        rounds=rounds,
        seed=seed,
        mode="batched",
        out=out,
        **SETTINGS,
    )


def own_strategy(out: Path, rounds: int, seed: int) -> Run:
    """Simulate an object of a strategy."""
    strategy = MaxFL(server_lr=0.5, stabilizer=0.01)
    return fedappeal.simulate(
        strategy, "digits", clients=5, rounds=rounds, seed=seed, mode="sequential", out=out, **SETTINGS
    )


def own_transformer(out: Path, rounds: int, seed: int) -> Run:
    """Simulate a model that trains side by side by vmap alone."""
    images = _images(200, seed)
    return fedappeal.simulate(
        "maxfl", model=Attention, data=_clients(images), rounds=rounds, seed=seed, mode="vmap", out=out, **SETTINGS
    )


def swept(out: Path, rounds: int, seed: int) -> None:
    """Simulate two runs."""
    fedappeal.sweep(
        ["fedavg", "maxfl"], "digits", clients=4, rounds=rounds, seed=seed, mode="layers", out=out, **SETTINGS
    )


STARTS: dict[str, Callable[[Path, int, int], Run | None]] = {
    run.__name__: run for run in (named, own_model, own_strategy, own_transformer, swept)
}


def _images(examples: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    images, labels = load_digits(return_X_y=True)
    chosen = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))[:examples]
    return torch.tensor(images / 16).float().view(-1, 1, 8, 8)[chosen], torch.tensor(labels)[chosen]


def _clients(images: tuple[torch.Tensor, torch.Tensor]) -> list[Any]:
    x, y = images
    size = len(y) // 5
    parts = [slice(size * client, size * (client + 1)) for client in range(5)]
    return [
        ((x[part][: size * 2 // 3], y[part][: size * 2 // 3]), (x[part][size * 2 // 3 :], y[part][size * 2 // 3 :]))
        for part in parts
    ]
