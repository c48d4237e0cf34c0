"""A torch model as named NumPy arrays, and its loss over a whole data set."""

from collections.abc import Iterator, Mapping
from functools import reduce

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedappeal.tasks.task import Split, Task

EVALUATION_BATCH = 4096
"""Examples a forward pass of an evaluation; bounds memory, does not change the result."""


def arrays_of(model: nn.Module) -> dict[str, NDArray[np.generic]]:
    """Return copies of all parameters and buffers by name, on the CPU."""
    return {name: np.array(t.detach().cpu().numpy()) for name, t in model.state_dict().items()}


def load_arrays(model: nn.Module, arrays: Mapping[str, NDArray[np.generic]]) -> None:
    """Copy named arrays into a model's parameters and buffers.

    Raises:
        RuntimeError: if names or shapes differ from the model's.
    """
    model.load_state_dict({name: torch.from_numpy(np.array(a)) for name, a in arrays.items()})


def _batches(data: Split) -> Iterator[tuple[Tensor, Tensor]]:
    for start in range(0, len(data), EVALUATION_BATCH):
        yield data.x[start : start + EVALUATION_BATCH], data.y[start : start + EVALUATION_BATCH]


@torch.no_grad()
def evaluate(task: Task, model: nn.Module, data: Split, training: bool = False) -> tuple[float, float]:
    """Return a model's mean loss and accuracy; ``training``: with dropout on."""
    model.eval()
    if training:  # dropout alone: a normalisation by batches would make the loss no mean over examples
        for module in model.modules():
            if isinstance(module, nn.modules.dropout._DropoutNd):
                module.train()
    total, correct = 0.0, 0.0
    for x, y in _batches(data):
        logits = model(x)
        total += float(task.loss(logits, y, reduction="sum"))
        correct += task.metrics(logits, y)["accuracy"] * len(y)
    return total / len(data), correct / len(data)


def mean_gradient(task: Task, model: nn.Module, data: Split) -> list[Tensor]:
    """Return the gradient of a model's mean loss, one tensor a trainable parameter.

    In evaluation mode; it goes through the data as `evaluate` does, so that memory stays bounded.
    """
    model.eval()
    parameters = [p for p in model.parameters() if p.requires_grad]
    losses = (task.loss(model(x), y, reduction="sum") for x, y in _batches(data))
    total = reduce(
        torch._foreach_add, (torch.autograd.grad(loss, parameters, materialize_grads=True) for loss in losses)
    )
    return list(torch._foreach_div(total, float(len(data))))
