"""How many people a global model helps: FedAvg's against the model that each trains alone, on data of people.

For each task with natural clients: FedAvg with all of its people (100 a round, 200 rounds of 10 local steps), and for
each of them a model of the same form and the same w_0, trained alone by the same minibatch SGD. Both are compared by
the accuracy on the client's own test data. How long a client should train alone is not known beforehand: each number
of steps has an arm.
"""

import tempfile
from functools import partial
from typing import Any

from benchmarks.run import Figures, Row, scaled

PEOPLE = {"movielens": (671, 0.1), "chem97": (1091, 0.1), "debian": (304, 2.0)}
"""Clients with ten examples or more: all of them (of debian, at Debian 12). Learning rate of FedAvg and alone: words
are rare, and their weights need longer steps."""
BATCH, SEED = 32, 0


def helped(name: str, steps: int, rounds: int) -> Figures:
    """Return the shares of people for whom FedAvg's model is better and worse than theirs after some steps alone."""
    import numpy as np
    import torch

    import fedappeal
    from client.training.models import evaluate
    from fedappeal.settings.config import TaskSettings
    from fedappeal.tasks import load_task

    torch.set_num_threads(1)
    clients, rate = PEOPLE[name]
    task = load_task(TaskSettings(task=name, clients=clients, seed=SEED))
    settings: dict[str, Any] = {"clients": clients, "clients_per_round": 100, "rounds": rounds, "local_steps": 10}
    settings |= {"learning_rate": rate, "batch_size": BATCH, "participation": "always", "requirement": "fixed"}
    settings |= {"evaluate_every": rounds, "evaluate_train": False, "seed": SEED, "quiet": True}
    with tempfile.TemporaryDirectory() as folder:
        shared = fedappeal.simulate("fedavg", name, **settings, out=f"{folder}/run").model()
    scores = np.empty((2, scaled(clients)))
    for client in range(scores.shape[1]):
        data, model = task.load(client), task.initial_model(SEED)
        optimiser = torch.optim.SGD(model.parameters(), lr=rate)
        draws, batches = torch.Generator().manual_seed(1000 * SEED + client), list[Any]()
        while len(batches) < steps:
            batches += torch.randperm(len(data.train.y), generator=draws).split(BATCH)
        model.train()
        for rows in batches[:steps]:
            optimiser.zero_grad()
            task.loss(task.forward(model, data.train.x[rows]), data.train.y[rows]).backward()  # type: ignore[index,no-untyped-call]
            optimiser.step()
        scores[:, client] = [evaluate(task, trained, data.test).score for trained in (shared, model)]
    together, alone = scores
    shares = {"better": float((together > alone).mean()), "worse": float((together < alone).mean())}
    return {**shares, "together": float(together.mean()), "alone": float(alone.mean())}


ROWS = {
    f"people/{name}": Row(
        {f"{steps} steps alone": partial(helped, name, steps) for steps in (30, 100, 300)},
        rounds=200,
        repetitions=1,
    )
    for name in PEOPLE
}
