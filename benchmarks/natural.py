"""How many people a global model helps: FedAvg's against the model that each trains alone, on data of people.

For each task with natural clients: FedAvg with all of its people (100 a round, 200 rounds of 10 local steps), and for
each of them a model of the same form and the same w_0, trained alone by the same minibatch SGD. Both are compared by
the accuracy on the client's own test data. How long a client should train alone is not known beforehand: each number
of steps has an arm.
"""

import tempfile
from functools import partial
from typing import Any

from benchmarks.run import Figures, Row

PEOPLE = {"movielens": (671, 0.1), "chem97": (1091, 0.1), "debian": (304, 2.0)}
"""Clients with ten examples or more: all of them (of debian, at Debian 12). Learning rate of FedAvg and alone: words
are rare, and their weights need longer steps."""
BATCH, SEED = 32, 0


def accuracy(task: Any, model: Any, test: Any) -> float:
    """Return a model's accuracy on a client's test data."""
    import torch

    model.eval()
    with torch.no_grad():
        return float(task.metrics(task.forward(model, test.x), test.y)["accuracy"])


def helped(name: str, steps: int, rounds: int) -> Figures:
    """Return the shares of people for whom FedAvg's model is better and worse than theirs after some steps alone."""
    import numpy as np
    import torch

    import fedappeal
    from fedappeal.settings.config import TaskSettings
    from fedappeal.tasks import load_task

    torch.set_num_threads(1)
    clients, rate = PEOPLE[name]
    task = load_task(TaskSettings(task=name, clients=clients, seed=SEED))
    settings: dict[str, Any] = {"clients": clients, "clients_per_round": 100, "rounds": rounds, "local_steps": 10}
    settings |= {"learning_rate": rate, "batch_size": BATCH, "participation": "always", "requirement": "fixed"}
    settings |= {"evaluate_every": rounds, "evaluate_train": False, "seed": SEED, "quiet": True}
    with tempfile.TemporaryDirectory() as folder:
        shared = fedappeal.simulate("fedavg", task=name, **settings, out=f"{folder}/run").model()
    together, alone = list[float](), list[float]()
    for client in range(clients):
        data, model = task.load(client), task.initial_model(SEED)
        optimiser = torch.optim.SGD(model.parameters(), lr=rate)
        draws = torch.Generator().manual_seed(1000 * SEED + client)
        batches = list[Any]()
        while len(batches) < steps:
            batches += torch.randperm(len(data.train.y), generator=draws).split(BATCH)
        model.train()
        for rows in batches[:steps]:
            optimiser.zero_grad()
            task.loss(task.forward(model, data.train.x[rows]), data.train.y[rows]).backward()  # type: ignore[index,no-untyped-call]
            optimiser.step()
        together.append(accuracy(task, shared, data.test))
        alone.append(accuracy(task, model, data.test))
    both, own = np.array(together), np.array(alone)
    shares = {"better": float((both > own).mean()), "worse": float((both < own).mean())}
    return {**shares, "together": float(both.mean()), "alone": float(own.mean())}


ROWS = {
    f"people/{name}": Row(
        {f"{steps} steps alone": partial(helped, name, steps) for steps in (30, 100, 300)}, by="better", rounds=200
    )
    for name in PEOPLE
}
