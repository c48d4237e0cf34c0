"""An ``.npz`` with an array ``x``, one row an example, and labels ``y``."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import prod

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from client.data.columns import Unfit
from fedappeal.protocol.keys import DataProblem
from fedappeal.tasks.files.data_size import check_size

Raw = NDArray[np.generic]
Shape = tuple[int, ...]
CheckShape = Callable[[Shape], None]
"""Raises ValueError where x may not have this shape."""
_HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}


def any_shape(shape: Shape) -> None:
    """Allow any shape of x: there is no task yet."""


def read_npz(path: str, check_shape: CheckShape = any_shape, needed: Sequence[str] = ("x", "y")) -> dict[str, Raw]:
    """Return x and y by name, those of them that the file holds.

    Types, shapes and sizes are checked by the arrays' headers, before one is read.

    Args:
        path: the file.
        check_shape: checks the shape of x.
        needed: which of them it has to hold, x at least.

    Raises:
        Unfit: no such file, damaged arrays, arrays of other types, unequal lengths, values that are not finite.
        ValueError: arrays that need too much memory, and as `check_shape`.
    """
    with _opened(path, needed) as file:
        headers = {name: _header(file, name) for name in ("x", "y") if name in file.files}
        x, y = headers["x"][0], headers["y"][0] if "y" in headers else None
        if y is not None and (not y or y[:1] != x[:1]):
            raise Unfit(DataProblem.SHAPE, f"y has shape {y}, x has {x}: one label an example is needed")
        if not x:
            raise Unfit(DataProblem.SHAPE, "x has shape (): one row an example is needed")
        check_shape(x)
        check_size(sum(prod(shape) * dtype.itemsize for shape, dtype in headers.values()), "its arrays")
        arrays: dict[str, Raw] = {}
        for key in headers:
            with _reading(key):
                arrays[key] = file[key]
    for name, array in arrays.items():
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            row = int(np.flatnonzero(~np.isfinite(array).reshape(len(array), -1).all(axis=1))[0])
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
            held = ", ".join(file.files) or "nothing"
            raise Unfit(DataProblem.COLUMNS, f"it holds no array {' and no array '.join(missing)} (it holds {held})")
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
