"""An ``.npz`` with an array ``x``, one row an example, and labels ``y``."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from client.data.unfit import Unfit
from fedappeal.protocol.data_problem import DataProblem

Raw = NDArray[np.generic]


def read_npz(path: str) -> tuple[Raw, Raw]:
    """Return x and y; whether they fit a task is not known yet.

    Raises:
        Unfit: no such file, damaged arrays, arrays of other types, unequal lengths, values that are not finite.
    """
    arrays = _read(path, ("x", "y"))
    return arrays["x"], arrays["y"]


def read_inputs(path: str) -> tuple[Raw, Raw | None]:
    """Return x, and y where the file holds one; raises as `read_npz`."""
    arrays = _read(path, ("x",))
    return arrays["x"], arrays.get("y")


def _read(path: str, needed: Sequence[str]) -> dict[str, Raw]:
    with _opened(path, needed) as file:
        arrays: dict[str, Raw] = {name: _array(file, name) for name in ("x", "y") if name in file.files}
    x, y = arrays["x"], arrays.get("y")
    if y is not None and (not y.ndim or len(y) != (len(x) if x.ndim else -1)):
        raise Unfit(DataProblem.SHAPE, f"y has shape {y.shape}, x has {x.shape}: one label an example is needed")
    if not x.ndim:
        raise Unfit(DataProblem.SHAPE, "x has shape (): one row an example is needed")
    for name, array in arrays.items():
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            row = int(np.flatnonzero(~np.isfinite(array).reshape(len(array), -1).all(axis=1))[0])
            raise Unfit(DataProblem.VALUES, f"row {row} of {name} holds a value that is not finite")
    return arrays


@contextmanager
def _opened(path: str, needed: Sequence[str]) -> Iterator[np.lib.npyio.NpzFile]:
    """Open an .npz that holds the arrays that are needed."""
    try:
        file = np.load(path, allow_pickle=False)
    except Exception as error:  # a damaged archive fails in ways of its own
        raise Unfit(DataProblem.UNREADABLE, f"not an .npz that can be read ({error})") from None
    if not isinstance(file, np.lib.npyio.NpzFile):
        raise Unfit(DataProblem.UNREADABLE, "not an .npz: it holds one array without a name")
    with file:
        missing = [name for name in needed if name not in file.files]
        if missing:
            held = ", ".join(file.files) or "nothing"
            raise Unfit(DataProblem.COLUMNS, f"it holds no array {' and no array '.join(missing)} (it holds {held})")
        yield file


def _array(file: np.lib.npyio.NpzFile, name: str) -> Raw:
    try:
        array: Raw = file[name]
    except Exception as error:  # zlib.error and others
        raise Unfit(DataProblem.UNREADABLE, f"its array {name} cannot be read ({error})") from None
    if array.dtype.kind not in "iuf":
        problem = DataProblem.VALUES if name == "x" else DataProblem.LABELS
        raise Unfit(problem, f"{name} is of type {array.dtype}: integers and floats are allowed")
    return array
