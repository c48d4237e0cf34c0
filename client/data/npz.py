"""An ``.npz`` with arrays ``x`` and ``y``, one row an example."""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from client.data.unfit import Unfit
from fedappeal.protocol.data_problem import DataProblem


def read_npz(path: str) -> tuple[NDArray[np.generic], NDArray[np.generic]]:
    """Return x and y, of equal lengths and of numbers; whether they fit a task is not known yet.

    Raises:
        Unfit: no such file, damaged arrays, arrays of other types, unequal lengths, values that are not finite.
    """
    with _opened(path) as file:
        x, y = (_array(file, name) for name in ("x", "y"))
    if not y.ndim or len(y) != (len(x) if x.ndim else -1):
        raise Unfit(DataProblem.SHAPE, f"y has shape {y.shape}, x has {x.shape}: one label an example is needed")
    for name, array in (("x", x), ("y", y)):
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            row = int(np.flatnonzero(~np.isfinite(array).reshape(len(array), -1).all(axis=1))[0])
            raise Unfit(DataProblem.VALUES, f"row {row} of {name} holds a value that is not finite")
    return x, y


@contextmanager
def _opened(path: str) -> Iterator[np.lib.npyio.NpzFile]:
    """Open an .npz that holds ``x`` and ``y``."""
    try:
        file = np.load(path, allow_pickle=False)
    except Exception as error:  # a damaged archive fails in ways of its own
        raise Unfit(DataProblem.UNREADABLE, f"not an .npz that can be read ({error})") from None
    if not isinstance(file, np.lib.npyio.NpzFile):
        raise Unfit(DataProblem.UNREADABLE, "not an .npz: it holds one array without a name")
    with file:
        missing = [name for name in ("x", "y") if name not in file.files]
        if missing:
            held = ", ".join(file.files) or "nothing"
            raise Unfit(DataProblem.COLUMNS, f"it holds no array {' and no array '.join(missing)} (it holds {held})")
        yield file


def _array(file: np.lib.npyio.NpzFile, name: str) -> NDArray[np.generic]:
    try:
        array: NDArray[np.generic] = file[name]
    except Exception as error:  # zlib.error and others
        raise Unfit(DataProblem.UNREADABLE, f"its array {name} cannot be read ({error})") from None
    if array.dtype.kind not in "iuf":
        problem = DataProblem.VALUES if name == "x" else DataProblem.LABELS
        raise Unfit(problem, f"{name} is of type {array.dtype}: integers and floats are allowed")
    return array
