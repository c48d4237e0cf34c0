"""A client's raw inputs and labels, from an .npz file or a function, as its task takes them."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import prod
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from fedappeal.core.places import reason
from fedappeal.data.columns import Unfit
from fedappeal.data.data_size import check_size
from fedappeal.protocol.keys import DataProblem
from fedappeal.tasks.examples import form_text, only_tensor
from fedappeal.tasks.table_scale import takes_as_is
from fedappeal.tasks.task import Structure, Task


def scaled_inputs(task: Task, raw: NDArray[np.generic]) -> Structure:
    """Return inputs as `Task.inputs` makes them of raw ones of the right shape.

    Args:
        task: the task.
        raw: finite numbers, one row an example.

    Raises:
        Unfit: another shape than the task's, values that are not allowed, or a task that takes no such data.
    """
    shape = task.input_shape
    if type(task).inputs is Task.inputs:
        problem = DataProblem.NOT_TAKEN
    else:
        check_shape(raw.shape, shape)
        problem = DataProblem.VALUES
    try:
        return task.inputs(raw)
    except ValueError as error:
        raise Unfit(problem, str(error)) from None
    except MemoryError:
        raise
    except Exception as error:  # a task of one's own, which may fail in any way
        raise Unfit(problem, f"its inputs failed: {reason(error)}") from error


def columns_to_scale(task: Task, raw: NDArray[np.generic]) -> NDArray[np.float64]:
    """Return a table's numbers before they are standardised: as they are, or scaled by a task that does.

    Args:
        task: the task.
        raw: finite numbers, shape ``(n, *input_shape)``.

    Raises:
        Unfit: the task's inputs are no columns of numbers, or as `scaled_inputs`.
    """
    inputs = scaled_inputs(task, raw)
    if takes_as_is(task):
        return raw.astype(np.float64)
    columns = only_tensor(inputs)
    if columns is None or columns.ndim != 2 or not columns.is_floating_point():
        text = f"scale = 'standard' is of columns of numbers: the task's inputs are {form_text(inputs)}"
        raise Unfit(DataProblem.SHAPE, text)
    return columns.double().numpy()


def check_shape(actual: tuple[int, ...], shape: tuple[int, ...]) -> None:
    """Check the shape of raw inputs, which may lack the axis of a single channel.

    Args:
        actual: shape of all of them.
        shape: of one of the task's inputs; empty: it may be any.

    Raises:
        Unfit: it is another.
    """
    if shape and actual[1:] not in (shape, shape[1:] if _has_one_channel(shape) else shape):
        wanted = f"(n, {', '.join(map(str, shape))})"
        wanted += f" or {wanted.replace('n, 1, ', 'n, ', 1)}" if _has_one_channel(shape) else ""
        raise Unfit(DataProblem.SHAPE, f"x has shape {actual}: {wanted} is needed, n examples first")


def _has_one_channel(shape: tuple[int, ...]) -> bool:
    return len(shape) == 3 and shape[0] == 1


def with_channel(raw: NDArray[np.generic], shape: tuple[int, ...]) -> NDArray[np.generic]:
    """Return images with an axis for a single channel, which they may lack.

    Args:
        raw: shape ``(n, ...)``.
        shape: of one of the task's inputs.
    """
    return raw[:, None] if _has_one_channel(shape) and raw.shape[1:] == shape[1:] else raw


def labels_in(y: NDArray[np.generic], num_classes: int) -> NDArray[np.generic]:
    """Return an array's labels: int64 classes, or float32 where labels are no classes.

    Args:
        y: one label an example.
        num_classes: number of labels C; 0 where labels are no classes.

    Raises:
        Unfit: classes of another type or shape than integers ``(n,)``, or out of range.
    """
    if not num_classes:
        return y.astype(np.float32)
    if y.dtype.kind == "f":
        raise Unfit(DataProblem.LABELS, f"y is of type {y.dtype}: integers are allowed")
    if y.ndim != 1:
        raise Unfit(DataProblem.SHAPE, f"y has shape {y.shape}: one label an example is needed")
    check_classes(y, num_classes)
    return y.astype(np.int64)


def check_classes(labels: NDArray[Any], num_classes: int, ignored: int | None = None) -> None:
    """Check that labels are classes of the task.

    Args:
        labels: shape ``(n, ...)``.
        num_classes: number of labels C.
        ignored: a label that is allowed besides 0 to C-1.

    Raises:
        Unfit: one is not; names the first, and its row.
    """
    wrong = (labels < 0) | (labels >= num_classes)
    if ignored is not None:
        wrong &= labels != ignored
    if wrong.any():
        first = np.argwhere(wrong)[0]
        reason = f"label {labels[tuple(first)]} in row {first[0]} of y: 0 to {num_classes - 1} are allowed"
        raise Unfit(DataProblem.LABELS, reason)


Raw = NDArray[np.generic]
Shape = tuple[int, ...]
_HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}


def read_npz(path: str, input_shape: Shape = (), needed: Sequence[str] = ("x", "y")) -> dict[str, Raw]:
    """Return x and y by name, those of them that the file holds.

    Types, shapes and sizes are checked by the arrays' headers, before one is read.

    Args:
        path: the file.
        input_shape: of one of the task's inputs; empty: it may be any, or there is no task yet.
        needed: which of them it has to hold, x at least.

    Raises:
        Unfit: no such file, damaged arrays, other types or shapes, unequal lengths, values that are not finite.
        ValueError: arrays that need too much memory.
    """
    with _opened(path, needed) as file:
        headers = {name: _header(file, name) for name in ("x", "y") if name in file.files}
        x, y = headers["x"][0], headers["y"][0] if "y" in headers else None
        if y is not None and (not y or y[:1] != x[:1]):
            raise Unfit(DataProblem.SHAPE, f"y has shape {y}, x has {x}: one label an example is needed")
        if not x:
            raise Unfit(DataProblem.SHAPE, "x has shape (): one row an example is needed")
        check_shape(x, input_shape)
        check_size(sum(prod(shape) * dtype.itemsize for shape, dtype in headers.values()), "its arrays")
        arrays: dict[str, Raw] = {}
        for key in headers:
            with _reading(key):
                arrays[key] = file[key]
    for name, raw in arrays.items():
        if raw.dtype.kind == "f" and not np.isfinite(raw).all():
            row = int(np.flatnonzero(~np.isfinite(raw).reshape(len(raw), -1).all(axis=1))[0])
            raise Unfit(DataProblem.VALUES, f"row {row} of {name} holds a value that is not finite")
    return arrays


@contextmanager
def _opened(path: str, needed: Sequence[str]) -> Iterator[np.lib.npyio.NpzFile]:
    """Open an .npz that holds the arrays that are needed."""
    try:
        with open(path, "rb") as begin:
            if begin.read(len(npy.MAGIC_PREFIX)) == npy.MAGIC_PREFIX:  # NumPy would read all of it
                raise Unfit(DataProblem.UNREADABLE, "not an .npz: it holds one array without a name")
        file: np.lib.npyio.NpzFile = np.load(path, allow_pickle=False)
    except Unfit:
        raise
    except Exception as error:  # a damaged archive fails in ways of its own
        raise Unfit(DataProblem.UNREADABLE, f"not an .npz that can be read ({error})") from None
    with file:
        missing = [name for name in needed if name not in file.files]
        if missing:
            names = ", ".join(file.files) or "nothing"
            raise Unfit(DataProblem.COLUMNS, f"it holds no array {' and no array '.join(missing)} (it holds {names})")
        yield file


def _header(file: np.lib.npyio.NpzFile, name: str) -> tuple[Shape, np.dtype[np.generic]]:
    """Return an array's shape and type."""
    assert file.zip is not None
    with _reading(name), file.zip.open(f"{name}.npy") as part:
        shape, _, dtype = _HEADERS[npy.read_magic(part)](part)
    if dtype.kind not in "iuf":
        problem = DataProblem.VALUES if name == "x" else DataProblem.LABELS
        raise Unfit(problem, f"{name} is of type {dtype}: integers and floats are allowed")
    return shape, dtype


@contextmanager
def _reading(name: str) -> Iterator[None]:
    """Say of which array it is that it cannot be read."""
    try:
        yield
    except Exception as error:  # zlib.error and others
        raise Unfit(DataProblem.UNREADABLE, f"its array {name} cannot be read ({error})") from None
