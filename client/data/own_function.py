"""The owner's own function that loads the data: ``package.module:load``.

It is called with the task and returns examples: ``(x, y)``, a `Split`, a ``(train, test)`` pair of these, or
`ClientData`. It is the owner's code on the owner's machine, and needs no permission.
"""

from collections.abc import Callable, Mapping
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from client.data.raw import check_classes, scaled_inputs
from fedappeal.core.places import reason
from fedappeal.core.plugins import Registry
from fedappeal.data.columns import Unfit
from fedappeal.protocol.keys import DataProblem
from fedappeal.settings.config import ConfigError
from fedappeal.tasks.examples import ClientData, Split, Structure, map_tensors, only_tensor, tensors_of
from fedappeal.tasks.task import Task

_FUNCTIONS: Registry[object] = Registry(kind="data", group="fedappeal.data", base=object, built_in={})
_IGNORED = -100
"""A label of PyTorch's losses that counts for nothing; allowed where an example has several labels."""
_ALLOWED = "(x, y), a Split, or a (train, test) pair of these is allowed"


def find_function(name: str) -> Callable[[Task], object]:
    """Return the owner's function; the current folder is searched last.

    Raises:
        Unfit: not importable, or not callable.
    """
    try:
        function = _FUNCTIONS.find(name)
    except ConfigError as error:
        raise Unfit(DataProblem.UNREADABLE, str(error).removeprefix(f"data = '{name}' ")) from error
    except (Exception, KeyboardInterrupt):
        raise
    except BaseException as error:  # of a class that is no Exception: it must not end the client
        raise Unfit(DataProblem.UNREADABLE, f"its import ended the program ({error})") from None
    if not callable(function):
        raise Unfit(DataProblem.UNREADABLE, f"{name.rpartition(':')[2]} is not callable")
    return cast("Callable[[Task], object]", function)


def load_by_function(task: Task, name: str) -> Split | ClientData:
    """Return what the owner's function loads, checked against the task.

    A lone NumPy array of inputs is raw, and the task scales it; tensors, dicts and tuples are what the model takes.

    Raises:
        Unfit: the function fails, or returns what does not fit the task.
    """
    load = find_function(name)
    try:
        loaded: Any = load(task)
    except BaseException as error:  # the owner's code may raise anything: it must not end the client
        raise Unfit(DataProblem.UNREADABLE, f"it failed: {reason(error)}") from error
    if isinstance(loaded, ClientData):
        return loaded.changed(lambda split: _fitting_examples(task, split))
    if _is_pair(loaded) and all(isinstance(part, Split) or _is_pair(part) for part in loaded):
        return ClientData(*(_examples(task, part) for part in loaded))
    return _examples(task, loaded)


def _is_pair(value: Any) -> bool:
    return isinstance(value, tuple) and len(value) == 2


def _examples(task: Task, loaded: Any) -> Split:
    if isinstance(loaded, Split):
        return _fitting_examples(task, loaded)
    if not _is_pair(loaded):
        raise Unfit(DataProblem.SHAPE, f"it returned {type(loaded).__name__}: {_ALLOWED}")
    x, y = loaded
    _check_lengths(x, y)
    inputs: Structure
    if isinstance(x, Tensor | Mapping | list | tuple):
        inputs = map_tensors(_tensor, x)
    else:
        inputs = scaled_inputs(task, _numbers(np.asarray(x)))
    return _fitting_examples(task, Split(inputs, map_tensors(_tensor, y)))


def _check_lengths(x: Structure, y: Structure) -> None:
    lengths: dict[str, int] = {}
    for name, part in (("x", x), ("y", y)):
        for path, leaf in tensors_of(part):
            if not (shape := tuple(getattr(leaf, "shape", ()))):
                reason = f"{name}{path} is of type {type(leaf).__name__}, without rows"
                raise Unfit(DataProblem.SHAPE, f"{reason}: tensors and arrays are allowed, one row an example")
            lengths[name + path] = int(shape[0])
    if len(set(lengths.values())) != 1:
        reason = ", ".join(f"{name} has {length}" for name, length in lengths.items()) or "nothing"
        raise Unfit(DataProblem.SHAPE, f"one row an example is needed: {reason}")


def _numbers(array: NDArray[np.generic]) -> NDArray[np.generic]:
    if array.dtype.kind not in "biuf":
        raise Unfit(DataProblem.VALUES, f"an array is of type {array.dtype}: numbers are allowed")
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise Unfit(DataProblem.VALUES, "an array holds a value that is not finite")
    return array


def _tensor(leaf: Any) -> Tensor:
    """Return a tensor; of NumPy's float64, its default, PyTorch's default."""
    if isinstance(leaf, Tensor):
        return leaf.detach()
    array = _numbers(np.asarray(leaf))
    if array.dtype.kind == "u" and array.dtype.itemsize > 1:
        array = array.astype(np.int64)  # many of PyTorch's functions know no such type
    return torch.tensor(array.astype(np.float32) if array.dtype == np.float64 else array)


def _fitting_examples(task: Task, examples: Split) -> Split:
    """Return examples whose inputs and labels fit the task."""
    for name, part in (("x", examples.x), ("y", examples.y)):
        for path, tensor in tensors_of(part):
            if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
                raise Unfit(DataProblem.VALUES, f"{name}{path} holds a value that is not finite")
    x, y = only_tensor(examples.x), only_tensor(examples.y)
    if x is not None and task.input_shape and tuple(x.shape[1:]) != task.input_shape:
        wanted = f"(n, {', '.join(map(str, task.input_shape))})"
        raise Unfit(DataProblem.SHAPE, f"x has shape {tuple(x.shape)}: {wanted} is needed")
    if y is None or not task.num_classes:
        return examples
    if y.is_floating_point():
        if y.ndim == 1:
            raise Unfit(DataProblem.LABELS, f"y is of type {y.dtype}: whole numbers are needed")
        return examples
    labels = y.long()
    check_classes(labels.cpu().numpy(), task.num_classes, _IGNORED if labels.ndim > 1 else None)
    return Split(examples.x, labels)
