"""A program's own data as checked splits of tensors: the clients', and a central test set for the server."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, TensorDataset, default_collate

from client.training.models import arrays_of, evaluate, load_arrays
from fedappeal.protocol.foreign_text import one_line
from fedappeal.protocol.packing import Arrays
from fedappeal.settings.config import ConfigError
from fedappeal.tasks.examples import ClientData, Split, Structure, described, map_tensors, tensors_of
from fedappeal.tasks.task import Task

_SIDES = ("train", "test")
PAIRS = "a list of (train, test) pairs, each side (x, y), a torch Dataset or a Split"


def clients_of(pairs: Sequence[Any]) -> list[ClientData]:
    """Return the clients of a list of (train, test) pairs, checked.

    Raises:
        ConfigError: one line: the client, what it has, and what is allowed.
    """
    clients = []
    for k, pair in enumerate(pairs):
        if isinstance(pair, ClientData):
            clients.append(pair)
            continue
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise ConfigError(f"data is not allowed: client {k} is {_described(pair)}; {PAIRS} is")
        train, test = (split_of(side, f"client {k}'s {name}") for side, name in zip(pair, _SIDES, strict=True))
        clients.append(ClientData(train, test))
    check_clients(clients)
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
        return side
    if isinstance(side, TensorDataset) and len(side.tensors) == 2:
        side = side.tensors
    elif isinstance(side, Dataset):
        side = _collated(side, whose)
    if not isinstance(side, tuple | list) or len(side) != 2:
        raise ConfigError(
            f"data is not allowed: {whose} is {_described(side)}; (x, y), a torch Dataset or a Split is"
        )
    x, y = (_tensors(part, whose) for part in side)
    try:
        return Split(x, y)
    except ValueError as error:
        raise ConfigError(f"data is not allowed: {whose}: {error}") from None


def check_clients(clients: Sequence[ClientData]) -> None:
    """Check that there are clients, none of them empty, all of one form, and their numbers finite.

    Raises:
        ConfigError: one line: the client, its data, and those of client 0.
    """
    if not clients:
        raise ConfigError("data is not allowed: it holds no client")
    first: dict[str, str] = {}
    for k, client in enumerate(clients):
        for name, split in (("train", client.train), ("test", client.test)):
            if not len(split):
                raise ConfigError(f"data is not allowed: client {k} has no {name} examples; at least 1 is needed")
            for part in ("x", "y"):
                shape = described(getattr(split, part))
                if shape != first.setdefault(part, shape):
                    raise ConfigError(
                        f"data is not allowed: client {k}'s {name} {part} is {shape} an example, client 0's train "
                        f"{part} {first[part]}; all clients need the same form"
                    )
                for path, tensor in tensors_of(getattr(split, part)):
                    if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
                        raise ConfigError(
                            f"data is not allowed: client {k}'s {name} {part}{path} holds NaN or infinity"
                        )


def _collated(dataset: "Dataset[Any]", whose: str) -> Any:
    """Return all items of a dataset as one batch."""
    try:
        items = [dataset[i] for i in range(len(dataset))]  # type: ignore[arg-type]
    except TypeError as error:
        raise ConfigError(f"data is not allowed: {whose}: a Dataset needs a length and indices ({error})") from None
    if not items:
        raise ConfigError(f"data is not allowed: {whose} is empty; at least 1 example is needed")
    if not isinstance(items[0], tuple | list) or len(items[0]) != 2:
        raise ConfigError(f"data is not allowed: {whose} gives {_described(items[0])} an item; (x, y) is allowed")
    try:
        return tuple(single(part) for part in default_collate(items))  # Python's floats become float64
    except (RuntimeError, TypeError) as error:
        raise ConfigError(f"data is not allowed: {whose}: its items are not alike ({one_line(error)})") from None


def _tensors(part: Any, whose: str) -> Structure:
    """Return a structure with arrays and lists of numbers as tensors; float64 becomes float32."""
    if isinstance(part, Tensor):
        return part.detach()
    if isinstance(part, Mapping):
        return {str(key): _tensors(value, whose) for key, value in part.items()}
    if isinstance(part, tuple | list) and part and isinstance(part[0], Tensor | np.ndarray | Mapping):
        return tuple(_tensors(value, whose) for value in part)
    try:
        made = torch.as_tensor(np.asarray(part))
    except (TypeError, ValueError) as error:
        raise ConfigError(f"data is not allowed: {whose} holds no numbers ({one_line(error)})") from None
    return single(made)


def single(structure: Structure) -> Structure:
    """Return a structure with float64, which models do not compute with, as float32."""
    return map_tensors(lambda t: t.float() if t.dtype == torch.float64 else t, structure)


def _described(value: Any) -> str:
    length = f" of length {len(value)}" if isinstance(value, tuple | list) else ""
    return f"a {type(value).__name__}{length}"


PREFIX = "central_"
"""Begins the columns of the history that hold what the server measures."""


def central_evaluation(test: Any, task: Task, seed: int, device: torch.device) -> Callable[[int, Arrays], Any]:
    """Return what evaluates each evaluated model on the server.

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
        try:
            split = split_of(test, "the central test set").to(device)
        except ConfigError as error:
            raise ConfigError(str(error).replace("data is", "evaluate is", 1)) from None

        def measure(number: int) -> Any:
            result = evaluate(task, model, split)
            return {"loss": result.loss, task.metric.name: result.score, **result.others}

    initial = arrays_of(model)  # what stays with the clients has its initial values

    def central(number: int, arrays: Arrays) -> dict[str, float]:
        load_arrays(model, {**initial, **arrays})
        with torch.no_grad():
            result = measure(number)
        model.eval()
        if not isinstance(result, Mapping):
            raise ConfigError(f"evaluate is not allowed: it returned {type(result).__name__}; a dict of numbers is")
        return {PREFIX + str(key).replace("-", "_"): float(value) for key, value in result.items()}

    return central
