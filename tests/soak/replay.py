"""The model that a run must have come to, from who joined each round: FedAvg on softmax regression, by formula.

None of the project's training or aggregation is used: gradients are written out, in float64. Shared with it are the
data, the draws of minibatches, and w_0.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedappeal.protocol.draws import Minibatches
from fedappeal.settings.config import RunConfig
from fedappeal.tasks import load_task

Array = NDArray[np.float64]


@dataclass(frozen=True)
class _Client:
    """Training examples of one client: inputs with a last column of ones, and one row of 0 and 1 for each label."""

    inputs: Array
    labels: Array


def joined_by_round(participation: Sequence[Mapping[str, Any]]) -> dict[int, list[str]]:
    """Return who joined each round, as a run recorded it."""
    joined: dict[int, list[str]] = {}
    for line in participation:
        if line["decision"] == "joined":
            joined.setdefault(int(line["round"]), []).append(str(line["client-id"]))
    return joined


def replay(
    config: RunConfig,
    initial: Mapping[str, NDArray[np.generic]],
    joined: Mapping[int, Sequence[str]],
    partitions: Mapping[str, int],
) -> dict[str, Array]:
    """Return the final model of FedAvg on logistic regression.

    Args:
        config: the run's settings: constant learning rate, no momentum, no weight decay.
        initial: w_0, with ``output.weight`` of shape ``(C, d)`` and ``output.bias`` of shape ``(C,)``.
        joined: client-ids by round.
        partitions: which of the task's clients each client-id is.
    """
    task = load_task(config.task_settings())
    clients: dict[str, _Client] = {}
    for client in {client for ids in joined.values() for client in ids}:
        train = task.load(partitions[client]).train
        inputs = np.asarray(train.x, dtype=np.float64).reshape(len(train), -1)
        labels = np.eye(task.num_classes)[np.asarray(train.y)]
        clients[client] = _Client(np.hstack([inputs, np.ones((len(train), 1))]), labels)
    weight, bias = (np.asarray(initial[f"output.{name}"], dtype=np.float64) for name in ("weight", "bias"))
    model = np.hstack([weight, bias[:, None]])
    for number in sorted(joined):
        trained = [_trained(model, clients[client], client, number, config) for client in sorted(joined[number])]
        examples = [len(clients[client].labels) for client in sorted(joined[number])]
        model = np.average(trained, axis=0, weights=examples)
    return {"output.weight": model[:, :-1], "output.bias": model[:, -1]}


def _trained(model: Array, client: _Client, client_id: str, number: int, config: RunConfig) -> Array:
    size = len(client.labels)
    for batch in Minibatches(config.seed, client_id, number, size, config.local_steps, config.batch_size).rows():
        inputs, labels = client.inputs[batch], client.labels[batch]
        logits = inputs @ model.T
        odds = np.exp(logits - logits.max(axis=1, keepdims=True))
        errors = odds / odds.sum(axis=1, keepdims=True) - labels
        model = model - config.learning_rate * errors.T @ inputs / len(batch)
    return model
