"""The loss of one model on the data of many clients: one forward pass and a mean a client."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor

import numpy as np
import torch
from torch import Tensor, nn

from client.training.models import FLOAT32, evaluate, forward, load_arrays
from fedappeal.core.measured import Evaluation
from fedappeal.protocol.packing import Arrays
from fedappeal.simulation.forms.batched import Examples
from fedappeal.simulation.forms.inference import for_inference, is_pytorchs_own
from fedappeal.tasks.examples import only_tensor
from fedappeal.tasks.task import Task

CHUNK = 2048
"""Examples a forward pass: large enough for the products, small enough for the caches."""
SHORT = 128
"""Examples in a row, on average, below which those of clients that are apart are copied together first."""


class ClientsEvaluation:
    """Evaluates one model on many clients' data.

    Args:
        workers: share the forward passes on a CPU, each on one thread; None: one pass after another.
    """

    def __init__(self, workers: Executor | None = None) -> None:
        self._workers = workers
        self._fast: dict[nn.Module, nn.Module] = {}
        """By model: one over the same parameters that is faster in large passes."""

    @torch.no_grad()
    def of(
        self,
        task: Task,
        model: nn.Module,
        arrays: Arrays,
        examples: Examples,
        clients: Sequence[int],
        precision: str = FLOAT32,
    ) -> Mapping[int, Evaluation]:
        """Evaluate one model on several clients' data, as `client.training.models.evaluate` does for one.

        Args:
            task: gives loss and metrics.
            model: holds the model; its values are replaced.
            arrays: the model's values by name.
            examples: all clients' examples.
            clients: whose examples, without repetition.
            precision: of the forward passes.

        Returns:
            By client: mean loss and metrics, in evaluation mode.
        """
        load_arrays(model, arrays)
        model.eval()
        inputs, labels = only_tensor(examples.x), only_tensor(examples.y)
        fast = self._for_inference(model) if precision == FLOAT32 else model
        if inputs is None or labels is None or not task.is_plain():
            return {k: evaluate(task, fast, examples.of_client(k), precision=precision) for k in clients}
        on_cpu = all(p.device.type == "cpu" for p in model.parameters())
        rows = [examples.span(k) for k in clients]
        workers = self._workers if on_cpu and is_pytorchs_own(model) else None
        losses, right = _measured(task, fast, inputs, labels, rows, workers, precision)
        counts = np.array([stop - start for start, stop in rows])
        first = np.cumsum(counts) - counts
        loss, correct = (np.add.reduceat(values.double().cpu().numpy(), first) / counts for values in (losses, right))
        return {
            k: Evaluation(mean, share)
            for k, mean, share in zip(clients, loss.tolist(), correct.tolist(), strict=True)
        }

    def _for_inference(self, model: nn.Module) -> nn.Module:
        """Return a model that is faster in large passes; of PyTorch's own modules it is made once."""
        if not is_pytorchs_own(model):
            return for_inference(model)
        if model not in self._fast:
            self._fast[model] = for_inference(model)
        return self._fast[model]


def _measured(
    task: Task,
    model: nn.Module,
    inputs: Tensor,
    labels: Tensor,
    rows: Sequence[tuple[int, int]],
    workers: Executor | None,
    precision: str,
) -> tuple[Tensor, Tensor]:
    """Return the loss of each of the clients' examples, and whether it is labelled rightly."""
    count = sum(stop - start for start, stop in rows)
    losses = torch.empty(count, device=labels.device)
    right = torch.empty(count, dtype=torch.bool, device=labels.device)
    spans = joined(rows)
    if count < SHORT * len(spans):
        index = torch.cat([torch.arange(*span) for span in rows]).to(labels.device)
        inputs, labels, spans = inputs[index], labels[index], [(0, count)]

    @torch.no_grad()  # each thread has its own mode
    def measure(piece: tuple[int, int, int]) -> None:
        start, stop, at = piece
        x, y = inputs[start:stop], labels[start:stop]
        logits = forward(task, model, x, precision)
        losses[at : at + len(y)] = task.loss(logits, y, reduction="none")
        torch.eq(logits.argmax(dim=1), y, out=right[at : at + len(y)])

    list(map(measure, pieces(spans)) if workers is None else workers.map(measure, pieces(spans)))
    return losses, right


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
