"""Clients side by side against one after another: a round's local training of six models, in each form.

The same clients, data, minibatches and SGD for all arms: *plain loop* is a model, ``torch.optim.SGD`` and a loop
over clients and minibatches; *one by one* is a deployed client's arithmetic; *layers* and *vmap* train all clients at
once; *auto* is what ``fedappeal simulate`` takes. One thread; the ratios come from interleaved repetitions. On a
shared machine CPU time says more than seconds; on a GPU the seconds count.
``python benchmarks/side_by_side.py --json FILE``, ``--device cuda`` for a GPU
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from machine import described
from torch import Tensor, nn
from torch.nn import functional

from client.training.models import arrays_of
from client.training.requests import Arithmetic, TrainRequest
from client.training.sgd import SGD
from fedappeal.core.training_settings import LocalTrainingSettings
from fedappeal.settings.config import RunConfig
from fedappeal.simulation.forms.batched import NotBatchable
from fedappeal.simulation.forms.choice import LAYERS, SEQUENTIAL, VMAP, Choice, Problem, choose, form_of
from fedappeal.simulation.forms.measurement import train_all
from fedappeal.simulation.forms.scheduler import BatchScheduler
from fedappeal.simulation.pool import Pool
from fedappeal.tasks.examples import ClientData, Split
from fedappeal.tasks.task import Task

COUNTS = (5, 10, 20)
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


ROWS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], int, int, int]] = {
    "MLP, nn.Module": (OwnMLP, (1, 28, 28), 10, 32, 10),
    "MLP, nn.Sequential": (sequential_mlp, (1, 28, 28), 10, 32, 10),
    "MLP with a skip connection": (SkippingMLP, (1, 28, 28), 10, 32, 10),
    "CNN": (CNN, (1, 28, 28), 10, 32, 2),
    "tiny transformer": (Transformer, (), 100, 16, 5),
    "LSTM": (LSTM, (), 100, 16, 5),
    "ResNet-18, GroupNorm": (ResNet18, (3, 16, 16), 10, 8, 1),
}
"""Model, shape of an example (empty: 16 tokens), classes, examples a minibatch, local steps."""


class Given(Task):
    """Random examples, and one of the models."""

    def __init__(self, row: str) -> None:
        self.build, self.input_shape, self.num_classes, *_ = ROWS[row]

    def initial_model(self, seed: int) -> nn.Module:
        """Return the model."""
        torch.manual_seed(seed)
        return self.build()

    def load(self, client: int) -> ClientData:
        """Return one client's data."""
        draws = torch.Generator().manual_seed(client)
        y = torch.randint(0, self.num_classes, (EXAMPLES,), generator=draws)
        if self.input_shape:
            x = torch.randn(EXAMPLES, *self.input_shape, generator=draws)
        else:
            x = torch.randint(0, self.num_classes, (EXAMPLES, 16), generator=draws)
        return ClientData(Split(x, y), Split(x[:1], y[:1]))


class Round:
    """The local training of one round.

    Args:
        row: which model.
        clients: their number.
        device: where.
    """

    def __init__(self, row: str, clients: int, device: torch.device) -> None:
        *_, size, steps = ROWS[row]
        self.device, self.task = device, Given(row)
        self.module = self.task.initial_model(0).to(device)
        self.pool = Pool(self.task, clients, device)
        values: dict[str, Any] = {"clients": clients, "clients-per-round": clients, "batch-size": size}
        self.config = RunConfig.parse(values | {"local-steps": steps, "learning-rate": 0.01})
        training, draws = LocalTrainingSettings.of(self.config.as_config()), np.random.default_rng(0)
        arrays = arrays_of(self.module)
        self.requests = [
            TrainRequest(
                task=self.task,
                model=self.module,
                place=k,
                data=self.pool.client(k).train,
                arrays=arrays,
                rule=SGD(),
                training=training,
                batches=draws.integers(0, EXAMPLES, (steps, size)),
                seed=0,
                client_id=str(k),
                server_round=1,
                purpose="batches",
            )
            for k in range(clients)
        ]

    def chosen(self) -> Choice:
        """Return what ``auto`` takes."""
        return choose("auto", Problem(self.config, self.task, self.module, SGD, lambda: self.pool))

    def plain_loop(self) -> None:
        """Train client by client, as a script does."""
        start = {name: tensor.clone() for name, tensor in self.module.state_dict().items()}
        self.module.train()
        for request in self.requests:
            self.module.load_state_dict(start)
            optimiser = torch.optim.SGD(self.module.parameters(), lr=0.01)
            for rows in torch.from_numpy(request.batches).to(self.device):
                batch = request.data.take(rows)
                optimiser.zero_grad()
                self.task.loss(self.task.forward(self.module, batch.x), batch.y).backward()  # type: ignore[no-untyped-call]
                optimiser.step()
            arrays_of(self.module)
        self.module.load_state_dict(start)

    def one_by_one(self) -> None:
        """Train as deployed clients do."""
        for request in self.requests:
            Arithmetic().train(request)

    def side_by_side(self, mode: str) -> Callable[[], None]:
        """Return what trains all clients at once.

        Raises:
            NotBatchable: the model has no such form.
        """
        form = form_of(mode, self.task, self.module)
        assert form is not None

        def work() -> None:
            train_all(BatchScheduler(self.pool, form), self.requests)

        work()
        return work


def measured(row: str, clients: int, device: torch.device, repetitions: int) -> dict[str, Any]:
    """Return seconds and CPU seconds of each arm, and what ``auto`` takes."""
    this = Round(row, clients, device)
    arms: dict[str, Callable[[], None]] = {"plain loop": this.plain_loop, "one by one": this.one_by_one}
    for mode in (LAYERS, VMAP):
        try:
            arms[mode] = this.side_by_side(mode)
        except (NotBatchable, RuntimeError) as reason:
            print(f"  {row}: no {mode}: {str(reason).splitlines()[0]}")
    started = time.perf_counter()
    choice = this.chosen()
    took = time.perf_counter() - started
    arms["auto"] = this.one_by_one if choice.mode == SEQUENTIAL else arms[choice.mode]
    seconds: dict[str, list[float]] = {name: [] for name in arms}
    cpu: dict[str, list[float]] = {name: [] for name in arms}
    this.plain_loop()
    for repetition in range(repetitions):
        for name in sorted(arms, reverse=bool(repetition % 2)):
            _wait(device)
            begun, used = time.perf_counter(), time.process_time()
            arms[name]()
            _wait(device)
            cpu[name].append(time.process_time() - used)
            seconds[name].append(time.perf_counter() - begun)
    return {
        **{"row": row, "clients": clients, "choice": choice.mode, "why": choice.why, "choosing": took},
        **{"seconds": seconds, "cpu": cpu},
    }


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def ratios(found: dict[str, Any], device: torch.device, over: str) -> dict[str, float]:
    """Return how many times longer an arm takes than each of the others: the median over pairs of repetitions."""
    figures = found["seconds" if device.type == "cuda" else "cpu"]
    return {
        name: statistics.median(a / b for a, b in zip(figures[over], values, strict=True))
        for name, values in figures.items()
    }


def main() -> None:
    """Measure, print a table, and write JSON where asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="file for the figures")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--repetitions", type=int, default=9)
    parser.add_argument("--rows", default="", help="which models, by semicolons; empty: all")
    parser.add_argument("--clients", default=",".join(map(str, COUNTS)))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    device = torch.device(arguments.device)
    rows: list[dict[str, Any]] = []
    print(f"times as fast as the plain loop{'':<10}", *(f"{arm:>11}" for arm in ("one by one", LAYERS, VMAP, "auto")))
    for row in arguments.rows.split(";") if arguments.rows else ROWS:
        for clients in map(int, arguments.clients.split(",")):
            found = measured(row, clients, device, arguments.repetitions)
            of = ratios(found, device, "plain loop")
            shown = [
                f"{of[arm]:>11.2f}" if arm in of else f"{'-':>11}" for arm in ("one by one", LAYERS, VMAP, "auto")
            ]
            print(f"{row:<30}{clients:>3} clients", *shown, f" {found['choice']} ({found['why']})", flush=True)
            rows.append(found | {"ratios": of, "over_one_by_one": ratios(found, device, "one by one")})
    if arguments.json:
        arguments.json.write_text(json.dumps({**described(), "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
