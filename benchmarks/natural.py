"""How many people a global model helps: FedAvg's against the model that each trains alone, on data of people.

For each task with natural clients: FedAvg with all of its people (100 a round, 200 rounds of 10 local steps), and for
each of them a model of the same form and the same w_0, trained alone by the same minibatch SGD. Both are compared by
the accuracy on the client's own test data. How long a client should train alone is not known beforehand: each number
of steps has a row. ``python benchmarks/natural.py --json FILE``
"""

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from machine import described
from numpy.typing import NDArray
from torch import nn

import fedappeal
from fedappeal.settings.config import TaskSettings
from fedappeal.tasks import load_task
from fedappeal.tasks.examples import Split
from fedappeal.tasks.task import Task

PEOPLE = {"movielens": 671, "chem97": 1091, "debian": 304}
"""Clients with ten examples or more: all of them (of debian, at Debian 12)."""
ROUNDS, LOCAL_STEPS, A_ROUND = 200, 10, 100
LEARNING_RATES = {"movielens": 0.1, "chem97": 0.1, "debian": 2.0}
"""For FedAvg and alone; words are rare: their weights need longer steps."""
BATCH = 32
ALONE = (30, 100, 300)
"""Steps that a client trains alone."""


def accuracy(task: Task, model: nn.Module, test: Split) -> float:
    """Return a model's accuracy on a client's test data."""
    model.eval()
    with torch.no_grad():
        return task.metrics(task.forward(model, test.x), test.y)["accuracy"]


def together(task: Task, name: str, clients: int, seed: int) -> NDArray[np.float64]:
    """Return FedAvg's accuracy on each client's test data."""
    with tempfile.TemporaryDirectory() as folder:
        run = fedappeal.simulate(
            "fedavg",
            task=name,
            clients=clients,
            clients_per_round=min(A_ROUND, clients),
            rounds=ROUNDS,
            local_steps=LOCAL_STEPS,
            learning_rate=LEARNING_RATES[name],
            batch_size=BATCH,
            participation="always",
            requirement="fixed",
            evaluate_every=ROUNDS,
            evaluate_train=False,
            seed=seed,
            out=f"{folder}/run",
            quiet=True,
        )
        model = run.model()
    return np.array([accuracy(task, model, task.load(client).test) for client in range(clients)])


def alone(task: Task, client: int, seed: int) -> list[float]:
    """Return the accuracy of a client's own model after each number of steps."""
    data, model = task.load(client), task.initial_model(seed)
    x, y = data.train.x, data.train.y
    assert isinstance(x, torch.Tensor)
    assert isinstance(y, torch.Tensor)
    optimiser = torch.optim.SGD(model.parameters(), lr=LEARNING_RATES[task.name])
    draws = torch.Generator().manual_seed(1000 * seed + client)
    found, done = [], 0
    for steps in ALONE:
        model.train()
        while done < steps:
            for rows in torch.randperm(len(y), generator=draws).split(BATCH):
                if done == steps:
                    break
                optimiser.zero_grad()
                task.loss(task.forward(model, x[rows]), y[rows]).backward()
                optimiser.step()
                done += 1
        found.append(accuracy(task, model, data.test))
    return found


def measured(name: str, clients: int, seed: int) -> list[dict[str, Any]]:
    """Return a row for each number of steps alone."""
    task = load_task(TaskSettings(task=name, clients=clients, seed=seed))
    shared = together(task, name, clients, seed)
    own = np.array([alone(task, client, seed) for client in range(clients)])
    return [
        {
            "task": name,
            "clients": clients,
            "seed": seed,
            "steps alone": steps,
            "better": float((shared > own[:, k]).mean()),
            "worse": float((shared < own[:, k]).mean()),
            "accuracy together": float(shared.mean()),
            "accuracy alone": float(own[:, k].mean()),
        }
        for k, steps in enumerate(ALONE)
    ]


def main() -> None:
    """Measure and print; write JSON where asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="file for the figures")
    parser.add_argument("--tasks", nargs="+", choices=PEOPLE, default=list(PEOPLE))
    parser.add_argument("--seeds", type=int, default=1, help="number of seeds, from 0")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows: list[dict[str, Any]] = []
    print(f"{'task':<11}{'seed':>5}{'alone':>7}{'better':>8}{'worse':>8}{'together':>10}{'alone':>8}")
    for name in arguments.tasks:
        for seed in range(arguments.seeds):
            for row in measured(name, PEOPLE[name], seed):
                rows.append(row)
                print(
                    f"{name:<11}{seed:>5}{row['steps alone']:>7}{row['better']:>8.0%}{row['worse']:>8.0%}"
                    f"{row['accuracy together']:>10.3f}{row['accuracy alone']:>8.3f}",
                    flush=True,
                )
    if arguments.json:
        arguments.json.write_text(json.dumps({**described(), "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
