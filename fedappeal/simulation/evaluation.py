"""The loss of one model on the data of many clients: one forward pass and a mean a client."""

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from client.training.measured import Evaluation
from client.training.models import evaluate, load_arrays
from fedappeal.protocol.packing import Arrays
from fedappeal.simulation.batched import Examples
from fedappeal.tasks.examples import only_tensor
from fedappeal.tasks.task import Task

A = TypeVar("A")

CHUNK = 2048
"""Examples a forward pass: large enough for the products, small enough for the caches."""
SHORT = 128
"""Examples in a row, on average, below which those of clients that are apart are copied together first."""


@torch.no_grad()
def evaluate_clients(
    task: Task,
    model: nn.Module,
    arrays: Arrays,
    examples: Examples,
    clients: Sequence[int],
    workers: Executor | None = None,
) -> Mapping[int, Evaluation]:
    """Evaluate one model on several clients' data, as `client.training.models.evaluate` does for one.

    Args:
        task: gives loss and metrics.
        model: holds the model; its values are replaced.
        arrays: the model's values by name.
        examples: all clients' examples.
        clients: indices into ``examples.start``, without repetition.
        workers: share the forward passes on a CPU, each on one thread; None: one pass after another.

    Returns:
        By client: mean loss and metrics, in evaluation mode.
    """
    load_arrays(model, arrays)
    model.eval()
    each = _each(workers if _known(model) else None)
    model = for_inference(model)
    rows = [(examples.start[k], examples.start[k + 1]) for k in clients]
    inputs, labels = only_tensor(examples.x), only_tensor(examples.y)
    if inputs is None or labels is None or not task.is_plain():
        return {k: evaluate(task, model, examples.of_client(k)) for k in clients}
    owner = torch.from_numpy(np.repeat(np.arange(len(clients)), [stop - start for start, stop in rows]))
    owner = owner.to(labels.device)
    losses = torch.empty(len(owner), device=owner.device)
    right = torch.empty(len(owner), dtype=torch.bool, device=owner.device)
    spans = joined(rows)
    if len(owner) < SHORT * len(spans):
        index = torch.cat([torch.arange(*span) for span in rows]).to(labels.device)
        inputs, labels, spans = inputs[index], labels[index], [(0, len(owner))]

    def measure(piece: tuple[int, int, int]) -> None:
        start, stop, at = piece
        x, y = inputs[start:stop], labels[start:stop]
        logits = model(x)
        losses[at : at + len(y)] = task.loss(logits, y, reduction="none")
        torch.eq(logits.argmax(dim=1), y, out=right[at : at + len(y)])

    list(each(measure, pieces(spans)))
    loss = torch.zeros(len(clients), dtype=torch.float64, device=owner.device).index_add_(0, owner, losses.double())
    correct = torch.zeros_like(loss).index_add_(0, owner, right.double())
    counts = [stop - start for start, stop in rows]
    return {
        k: Evaluation(total / n, right / n)
        for k, total, right, n in zip(clients, loss.tolist(), correct.tolist(), counts, strict=True)
    }


def _each(workers: Executor | None) -> Callable[[Callable[[A], None], Iterable[A]], Iterator[None]]:
    """Return what does a piece of work for each item: by workers, or one item after another."""
    if workers is None:
        return map

    def by_workers(work: Callable[[A], None], items: Iterable[A]) -> Iterator[None]:
        def alone(item: A) -> None:
            with torch.no_grad():  # each thread has its own mode
                work(item)

        return workers.map(alone, items)

    return by_workers


def _known(model: nn.Module) -> bool:
    """Return whether a model may run in several threads at once: on a CPU, and of layers that keep nothing."""
    parameters = list(model.parameters())
    plain = all(type(module).__module__.startswith("torch.nn.modules.") for module in model.modules())
    return plain and all(p.device.type == "cpu" for p in parameters)


class _OneDnnLinear(nn.Linear):
    """A linear layer by oneDNN."""

    def forward(self, input: Tensor) -> Tensor:
        y: Tensor = torch.ops.mkldnn._linear_pointwise(input, self.weight, self.bias, "none", [], "")
        return y

    @classmethod
    def of(cls, layer: nn.Linear) -> "_OneDnnLinear":
        """Return a layer with the same parameters."""
        fast = copy.copy(layer)
        fast.__class__ = cls
        assert isinstance(fast, cls)
        return fast


def for_inference(model: nn.Module) -> nn.Module:
    """Return a model of the same values that is faster in large forward passes; the same one on an accelerator.

    PyTorch multiplies float32 matrices on a CPU by MKL, which does not use AMD's vectors in full; oneDNN does, and
    takes less than half of the time. PyTorch's compiler calls the same operator for the same reason.
    """
    layers = [module for module in model.modules() if type(module) is nn.Linear]
    plain = all(layer.weight.device.type == "cpu" and layer.weight.dtype == torch.float32 for layer in layers)
    if not layers or not plain or not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        return model
    fast = {id(layer): _OneDnnLinear.of(layer) for layer in layers}
    return copy.deepcopy(model, dict(fast))


def joined(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return spans of rows with those that follow each other as one."""
    whole: list[tuple[int, int]] = []
    for start, stop in spans:
        if whole and whole[-1][1] == start:
            whole[-1] = whole[-1][0], stop
        else:
            whole.append((start, stop))
    return whole


def pieces(spans: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int, int]]:
    """Cut spans into pieces of at most `CHUNK` rows: where each begins and ends, and how many rows come before it."""
    before = 0
    for start, stop in spans:
        for first in range(start, stop, CHUNK):
            last = min(first + CHUNK, stop)
            yield first, last, before
            before += last - first
