"""A torch model as named NumPy arrays, its forward pass, and its loss over a whole data set."""

from collections.abc import Collection, Iterator, Mapping
from functools import reduce
from itertools import chain
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from client.training.devices import on_device, on_host
from client.training.noise import begin_forward_pass
from fedappeal.core.requirement import Evaluation
from fedappeal.settings.config import ConfigError
from fedappeal.tasks.examples import Split, Structure
from fedappeal.tasks.measuring import Evaluator, batches, bytes_of, check_bytes, map_outputs
from fedappeal.tasks.share import names_of, tied_names
from fedappeal.tasks.task import Task

FLOAT32, BFLOAT16 = "float32", "bfloat16"


def arrays_of(model: nn.Module, names: Collection[str] | None = None) -> dict[str, NDArray[np.generic]]:
    """Return copies of parameters and buffers by name, on the CPU; all, or those named."""
    arrays = model.state_dict()
    chosen = names_of(model) if names is None else (name for name in arrays if name in names)
    return {name: np.array(array) for name, array in on_host({name: arrays[name] for name in chosen}).items()}


def load_arrays(model: nn.Module, arrays: Mapping[str, NDArray[np.generic]]) -> None:
    """Copy named arrays into a model; parameters that are never trained may be missing.

    Raises:
        RuntimeError: if names or shapes differ from the model's.
    """
    device = next(chain(model.parameters(), model.buffers()), torch.empty(0)).device
    tensors = {name: on_device(torch.from_numpy(np.array(a)), device) for name, a in arrays.items()}
    loaded = model.load_state_dict(tensors, strict=False)
    if not (loaded.unexpected_keys or loaded.missing_keys):
        return
    fixed = {name for name, p in model.named_parameters() if not p.requires_grad}
    may_miss = fixed | tied_names(model)
    wrong = [*loaded.unexpected_keys, *(name for name in loaded.missing_keys if name not in may_miss)]
    if wrong:
        raise RuntimeError(f"these arrays are not the model's, or missing: {', '.join(wrong)}")


def forward(task: Task, model: nn.Module, x: Structure, precision: str) -> Any:
    """Return a model's outputs in float32, calculated in a precision.

    Args:
        task: calls the model.
        model: with parameters in float32.
        x: inputs.
        precision: ``float32``, or ``bfloat16``: PyTorch's autocast, which keeps float32 where sums need it.
    """
    if precision == FLOAT32:
        return task.forward(model, x)
    device = next(model.parameters()).device.type
    with torch.autocast(device, torch.bfloat16):
        outputs = task.forward(model, x)
    return map_outputs(lambda t: t.float() if t.dtype == torch.bfloat16 else t, outputs)


@torch.no_grad()
def evaluate(
    task: Task, model: nn.Module, data: Split, training: bool = False, precision: str = FLOAT32
) -> Evaluation:
    """Return a model's mean loss and metrics; ``training``: with dropout on."""
    model.eval()
    if training:  # dropout alone: a normalisation by batches would make the loss no mean over examples
        for module in model.modules():
            if isinstance(module, nn.modules.dropout._DropoutNd):
                module.train()
    measured = Evaluator(task)
    for step, batch in enumerate(batches(task, data)):
        begin_forward_pass(step)
        measured.add(forward(task, model, batch.x, precision), batch.y)
    return measured.evaluation()


def mean_gradient(task: Task, model: nn.Module, data: Split) -> list[Tensor]:
    """Return the gradient of a model's loss on all of the data, one tensor a trainable parameter.

    In evaluation mode; it goes through the data as `evaluate` does, so that memory stays bounded. A loss that is no
    mean over the examples takes two passes: one for its gradient by all outputs, one for that by the parameters.
    """
    model.eval()
    parameters = [p for p in model.parameters() if p.requires_grad]
    losses: Iterator[Tensor]
    if task.loss_is_mean or len(data) <= task.evaluation_batch:
        losses = (task.loss(task.forward(model, batch.x), batch.y, reduction="sum") for batch in batches(task, data))
    else:
        losses = _linear_losses(task, model, data)
    total = reduce(
        torch._foreach_add, (torch.autograd.grad(loss, parameters, materialize_grads=True) for loss in losses)
    )
    return list(torch._foreach_div(total, float(len(data))))


def _linear_losses(task: Task, model: nn.Module, data: Split) -> Iterator[Tensor]:
    """Yield a scalar for each piece of the data.

    It has the gradient of the piece's part in the sum of the loss.

    Raises:
        ConfigError: the model's outputs are no lone tensor, or larger than may be kept.
    """
    pieces: list[Tensor] = []
    with torch.no_grad():
        for batch in batches(task, data):
            pieces.append(task.forward(model, batch.x))
            check_bytes(sum(map(bytes_of, pieces)))
            if not isinstance(pieces[-1], Tensor):
                raise ConfigError(
                    "the gradient of a loss that is no mean over the examples needs outputs of one tensor"
                )
    outputs = torch.cat(pieces).requires_grad_()
    with torch.enable_grad():
        (slope,) = torch.autograd.grad(task.loss(outputs, data.y, reduction="sum"), outputs)
    for batch, by_outputs in zip(batches(task, data), torch.split(slope, task.evaluation_batch), strict=True):
        yield (task.forward(model, batch.x) * by_outputs).sum()
