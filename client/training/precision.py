"""The number format of a forward pass."""

from typing import Any

import torch
from torch import nn

from fedappeal.tasks.examples import Structure, map_tensors
from fedappeal.tasks.task import Task

FLOAT32, BFLOAT16 = "float32", "bfloat16"


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
    if type(outputs) not in (torch.Tensor, tuple, list, dict):
        return outputs  # a form of the model's own, which its task knows how to read
    return map_tensors(lambda t: t.float() if t.dtype == torch.bfloat16 else t, outputs)
