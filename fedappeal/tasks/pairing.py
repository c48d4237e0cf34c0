"""The check that loss and metrics compare each output with its own label.

Where outputs are ``(n, 1)`` and labels ``(n,)``, torch combines each with each: ``(n, n)`` differences, whose mean is
a number that nobody asked for. A function that reshapes what it gets is right, so each is tried: one that gives the
same for labels in another order, and something else for outputs in the labels' shape, combines each with each.
"""

import math
import warnings
from collections.abc import Iterator
from contextlib import suppress
from itertools import product
from typing import Any

import torch
from torch import Tensor

from fedappeal.settings.config import ConfigError
from fedappeal.tasks.examples import Structure, only_tensor
from fedappeal.tasks.measuring import Evaluator
from fedappeal.tasks.task import Task

_ROWS = 8


def check_pairs(task: Task, outputs: Any, y: Structure) -> None:
    """Check that a task's loss and metrics pair each output with its label.

    Args:
        task: gives loss and metrics.
        outputs: of a model; only shape and dtype count.
        y: labels, in the same way.

    Raises:
        ConfigError: one line: what does not, and both shapes.
    """
    if name := pairing_problem(task, outputs, y):
        shapes = " and labels ".join(str(("n", *t.shape[1:])).replace("'", "") for t in (outputs, y))  # type: ignore[union-attr]
        raise ConfigError(
            f"{name} is not allowed: it does not pair each output with its label, as outputs are {shapes}: let the "
            "model, or this function, give both one shape"
        )


def pairing_problem(task: Task, outputs: Any, y: Structure, or_refuses: bool = False) -> str:
    """Return the loss or metric that mispairs outputs and labels; empty if none.

    Outputs of this shape are broadcast against such labels, rather than compared one by one.

    ``or_refuses``: or does not take them, though it takes outputs in the labels' shape.
    """
    labels = only_tensor(y)
    if not isinstance(outputs, Tensor) or labels is None or outputs.shape == labels.shape:
        return ""
    if outputs.numel() != labels.numel():
        return ""
    for one, other in product(_ramps(outputs), _ramps(labels)):
        as_given, turned = _values(task, one, other), _values(task, one, other.flip(0))
        for name, in_shape in _values(task, one.view_as(other), other).items():
            value = as_given.get(name, math.nan)
            combines = _close(value, turned.get(name, math.nan)) and not _close(value, in_shape)
            if combines or (or_refuses and name not in as_given):
                return name
    return ""


def _ramps(like: Tensor) -> Iterator[Tensor]:
    """Yield growing values: in [0, 1], around 0, and zeros before ones.

    They grow from row to row.
    """
    ramps = [torch.linspace(0.1, 0.9, _ROWS), torch.linspace(-1, 1, _ROWS), torch.arange(_ROWS) >= _ROWS // 2]
    for ramp in ramps if like.is_floating_point() else ramps[2:]:
        shape = (_ROWS, *like.shape[1:])
        yield ramp.to(like.dtype).view(-1, *[1] * (len(shape) - 1)).expand(shape).clone().to(like.device)


def _values(task: Task, outputs: Tensor, y: Tensor) -> dict[str, float]:
    """Return loss and metrics by name, without those that refuse these values."""
    values = {}
    with suppress(Exception), warnings.catch_warnings(action="ignore"):
        values["loss"] = float(task.loss(outputs, y))
    measurement = Evaluator(task, with_loss=False)
    with suppress(Exception), warnings.catch_warnings(action="ignore"):
        measurement.add(outputs, y)
        values |= {f"metric '{name}'": value for name, value in measurement.metrics().items()}
    return values


def _close(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=1e-5, abs_tol=1e-7)
