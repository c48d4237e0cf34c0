"""A program's own data as checked splits of tensors: the clients', and a central test set for the server."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, TensorDataset, default_collate

from client.training.models import arrays_of, evaluate, load_arrays
from fedappeal.core.places import reason
from fedappeal.protocol.foreign_text import one_line
from fedappeal.protocol.packing import Arrays
from fedappeal.settings.config import ConfigError
from fedappeal.tasks.examples import ClientData, Split, Structure, form_text, map_tensors, only_tensor, tensors_of
from fedappeal.tasks.fit import EXAMPLES
from fedappeal.tasks.task import Task

_SIDES = ("train", "test")
PAIRS = "a list, or a dict by client, of (train, test) pairs, each side (x, y), a torch Dataset or a Split"


def clients_of(pairs: Sequence[Any] | Mapping[Any, Any]) -> list[ClientData]:
    """Return the clients of (train, test) pairs, checked.

    Raises:
        ConfigError: one line: the client, what it has, and what is allowed.
    """
    clients = []
    for k, pair in pairs.items() if isinstance(pairs, Mapping) else enumerate(pairs):
        sides = pair.splits if isinstance(pair, ClientData) else pair
        if not isinstance(sides, tuple | list) or len(sides) not in (2, 2 + isinstance(pair, ClientData)):
            raise ConfigError(f"data is not allowed: client {k} is {_kind_of(pair)}; {PAIRS} is")
        names = (*_SIDES, "held-out")
        clients.append(
            ClientData(*(split_of(side, f"client {k}'s {name}") for side, name in zip(sides, names, strict=False)))
        )
    check_clients(clients, list(pairs) if isinstance(pairs, Mapping) else ())
    return clients


def split_of(side: Any, whose: str) -> Split:
    """Return labelled examples as a split.

    Args:
        side: a `Split`, a torch Dataset of (x, y), or a pair ``(x, y)`` of tensors, arrays or structures of them.
        whose: what a message calls it.

    Raises:
        ConfigError: another form, or x and y of different length.
    """
    if isinstance(side, Split):
        side = side.x, side.y
    if isinstance(side, TensorDataset) and len(side.tensors) == 2:
        side = side.tensors
    elif isinstance(side, Dataset):
        side = _one_batch(side, whose)
    if not isinstance(side, tuple | list) or len(side) != 2:
        raise ConfigError(f"data is not allowed: {whose} is {_kind_of(side)}; (x, y), a torch Dataset or a Split is")
    x, y = (_tensors(part, whose) for part in side)
    try:
        return Split(x, map_tensors(_label, y))
    except ValueError as error:
        raise ConfigError(f"data is not allowed: {whose}: {error}") from None


def check_clients(clients: Sequence[ClientData], names: Sequence[object] = ()) -> None:
    """Check that clients have data: not empty, of one form, with finite numbers.

    Raises:
        ConfigError: one line: the client, its data, and those of client 0.
    """
    if not clients:
        raise ConfigError("data is not allowed: it holds no client")
    first: dict[str, str] = {}
    for k, client in zip(names or range(len(clients)), clients, strict=True):
        for name, split in (("train", client.train), ("test", client.test)):
            if not len(split):
                raise ConfigError(f"data is not allowed: client {k} has no {name} examples; at least 1 is needed")
            for part in ("x", "y"):
                shape = form_text(getattr(split, part))
                if shape != first.setdefault(part, shape):
                    raise ConfigError(
                        f"data is not allowed: client {k}'s {name} {part} is {shape} an example, client 0's train "
                        f"{part} {first[part]}; all clients need the same form"
                    )
            _check_finite(split, f"client {k}'s {name}")


def _check_finite(split: Split, whose: str) -> None:
    for part in ("x", "y"):
        for path, tensor in tensors_of(getattr(split, part)):
            if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
                raise ConfigError(f"data is not allowed: {whose} {part}{path} holds NaN or infinity")


def _one_batch(dataset: "Dataset[Any]", whose: str) -> Any:
    """Return all items of a dataset as one batch."""
    try:
        items = [dataset[i] for i in range(len(dataset))]  # type: ignore[arg-type]
    except (TypeError, NotImplementedError) as error:  # an IterableDataset has neither
        raise ConfigError(f"data is not allowed: {whose}: a Dataset needs a length and indices ({error})") from None
    if not items:
        raise ConfigError(f"data is not allowed: {whose} is empty; at least 1 example is needed")
    if not isinstance(items[0], tuple | list) or len(items[0]) != 2:
        raise ConfigError(f"data is not allowed: {whose} gives {_kind_of(items[0])} an item; (x, y) is allowed")
    try:
        return tuple(single(part) for part in default_collate(items))  # Python's floats become float64
    except (RuntimeError, TypeError) as error:
        hint = "; a transform has to make tensors of its images" if "PIL" in str(error) else ""
        raise ConfigError(
            f"data is not allowed: {whose}: its items are not alike, or no numbers ({one_line(error)}{hint})"
        ) from None


def _label(y: Tensor) -> Tensor:
    """Return labels that are whole numbers as int64, as PyTorch's losses take them."""
    return y if y.is_floating_point() or y.is_complex() or y.dtype == torch.bool else y.long()


def _tensors(part: Any, whose: str) -> Structure:
    """Return a structure with arrays and lists of numbers as tensors; float64 becomes float32."""
    if isinstance(part, Tensor):
        if part.layout != torch.strided or part.is_meta:
            form = "on the meta device, without values" if part.is_meta else f"of layout {part.layout}: .to_dense()"
            raise ConfigError(f"data is not allowed: {whose} holds a tensor {form}")
        return part.detach()
    if isinstance(part, Mapping):
        return {str(key): _tensors(value, whose) for key, value in part.items()}
    if isinstance(part, tuple | list) and part and isinstance(part[0], Tensor | np.ndarray | Mapping):
        return tuple(_tensors(value, whose) for value in part)
    if masked := int(np.ma.getmaskarray(part).sum()) if isinstance(part, np.ma.MaskedArray) else 0:
        raise ConfigError(
            f"data is not allowed: {whose} has {masked} masked values: fill them in, or drop these examples"
        )
    try:
        array = np.asarray(part)
        if array.dtype.kind == "O":
            array = np.array(array.tolist())  # Python's numbers, or a row an element
    except (TypeError, ValueError) as error:
        raise ConfigError(f"data is not allowed: {whose} holds no numbers ({one_line(error)})") from None
    if array.dtype.kind not in "biufc":
        raise ConfigError(
            f"data is not allowed: {whose} holds {array.dtype}, no numbers (texts of classes: numpy.unique(y, "
            "return_inverse=True)[1])"
        )
    # PyTorch takes neither another order of bytes nor negative strides, nor floats of more than 64 bits.
    kind = np.dtype(np.float64) if array.dtype == np.longdouble else array.dtype.newbyteorder("=")
    return single(torch.from_numpy(np.require(array, kind, ["C", "W"]).reshape(array.shape)))


def single(structure: Structure) -> Structure:
    """Return a structure with float64, which models do not compute with, as float32."""
    return map_tensors(lambda t: t.float() if t.dtype == torch.float64 else t, structure)


def _kind_of(value: Any) -> str:
    length = f" of length {len(value)}" if isinstance(value, tuple | list) else ""
    return f"a {type(value).__name__}{length}"


PREFIX = "central_"
"""Begins the columns of the history that hold what the server measures."""


def _central_split(test: Any, task: Task, seed: int) -> Split:
    """Return a central test set, checked on w_0 with a few of its examples.

    Those of the extreme labels are among them.

    Raises:
        ConfigError: one line: what is wrong.
    """
    whose = "the central test set"
    try:
        split = split_of(test, whose)
        _check_finite(split, whose)
    except ConfigError as error:
        raise ConfigError(str(error).replace("data is", "evaluate is", 1)) from None
    if not len(split):
        raise ConfigError(f"evaluate is not allowed: {whose} has no examples; at least 1 is needed")
    y = only_tensor(split.y)
    extremes = [] if y is None or y.ndim != 1 or y.is_complex() else [int(y.long().argmin()), int(y.long().argmax())]
    rows = torch.tensor(sorted({*range(min(len(split), EXAMPLES)), *extremes}))
    try:
        evaluate(task, task.initial_model(seed), split.take(rows))
    except Exception as error:
        theirs = task.load(0).train
        forms = [f"x is {form_text(some.x)}, y is {form_text(some.y)} an example" for some in (split, theirs)]
        raise ConfigError(
            f"evaluate is not allowed: {whose} does not fit: {reason(error)} ({forms[0]}; client 0's {forms[1]})"
        ) from error
    scaler, x = getattr(task, "scaler", None), only_tensor(split.x)
    if scaler is None or x is None:
        return split
    return Split(torch.from_numpy(scaler.pooled.scaled(x.double().numpy())).float(), split.y)


def _figure(key: object, value: Any) -> float:
    try:
        return float(value)
    except Exception as error:  # each library has its own for what is no number
        text = f"{_kind_of(value)} ({reason(error)})"
        raise ConfigError(f"evaluate is not allowed: it returned {key!r}: {text}; a dict of numbers is") from error


def central_evaluation(test: Any, task: Task, seed: int, device: torch.device) -> Callable[[int, Arrays], Any]:
    """Return the function that evaluates models on the server.

    Args:
        test: a test set (``(x, y)``, a Dataset or a Split), or a callable ``(round, model) -> dict of numbers``.
        task: calls and measures the model.
        seed: of the run.
        device: where models are evaluated.

    Raises:
        ConfigError: what is neither.
    """
    model = task.initial_model(seed).to(device).eval()
    if callable(test):
        measure: Callable[[int], Any] = lambda number: test(number, model)  # noqa: E731
    else:
        split = _central_split(test, task, seed).to(device)

        def measure(number: int) -> Any:
            result = evaluate(task, model, split)
            score = {task.metric.name: result.score} if math.isfinite(result.score) else {}
            return {"loss": result.loss, **score, **result.others}

    initial = arrays_of(model)  # what stays with the clients has its initial values

    def central(number: int, arrays: Arrays) -> dict[str, float]:
        load_arrays(model, {**initial, **arrays})
        with torch.no_grad():
            result = measure(number)
        model.eval()
        if not isinstance(result, Mapping):
            raise ConfigError(f"evaluate is not allowed: it returned {type(result).__name__}; a dict of numbers is")
        return {PREFIX + str(key).replace("-", "_"): _figure(key, value) for key, value in result.items()}

    return central
