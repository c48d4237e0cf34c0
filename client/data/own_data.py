"""A volunteer's own data: an ``.npz`` with ``x`` and ``y``, or an image folder.

Nothing here needs the task's own data set, nor what it is read and partitioned with. The examples are scaled as the
task's are, and split by the run's ``train-share``; the draw follows the run's seed and the client-id.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from client.data.image_folder import class_folders, read_images
from fedappeal.protocol.config import ConfigError
from fedappeal.tasks.examples import ClientData, Split
from fedappeal.tasks.partitions.checks import check_enough
from fedappeal.tasks.partitions.split import split
from fedappeal.tasks.task import Task

log = logging.getLogger("fedappeal.client")

Inputs = NDArray[np.generic]
Labels = NDArray[np.int64]


class OwnDataError(ConfigError):
    """Data that a client cannot use.

    The message names files and values: it is for the owner, not for the server.
    """


def check_own_data(path: str) -> None:
    """Check own data before a run names its task: its kind, and its content.

    Raises:
        OwnDataError: one line: the path, what is wrong and what is allowed.
    """
    with _named(path):
        if _is_folder(path):
            class_folders(Path(path))
        else:
            with _opened(path):
                pass


def load_own_data(task: Task, path: str, client_id: str) -> ClientData:
    """Read, check, scale and split a client's own data.

    Args:
        task: says the inputs' shape, their scale and the labels; its settings say how to split.
        path: a file ``.npz``, or a folder of images.
        client_id: on which the split depends.

    Returns:
        The data, on the CPU.

    Raises:
        OwnDataError: one line: the path, what is wrong and what is allowed.
    """
    raw: Inputs
    with _named(path):
        if _is_folder(path):
            raw, labels = read_images(Path(path), task.input_shape, task.class_names, task.num_classes)
        else:
            raw, labels = _read_arrays(path, task.input_shape, task.num_classes)
        check_enough(task.settings, len(labels))
        inputs = task.inputs(raw)
        train, test = split(task.settings, client_id, np.arange(len(labels)))
    held = len(np.unique(labels))
    log.info(
        "data %s: %d examples of %d of the %d labels, %d to train on and %d to test with",
        *(path, len(labels), held, task.num_classes, len(train), len(test)),
    )
    x, y = inputs, torch.from_numpy(labels)
    return ClientData(*(Split(x[rows], y[rows]) for rows in (train, test)))


@contextmanager
def _named(path: str) -> Iterator[None]:
    """Say of everything that is wrong with the data which data that is."""
    try:
        yield
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise OwnDataError(f"data = '{path}' is not allowed: {reason}") from None


def _is_folder(path: str) -> bool:
    found = Path(path)
    if found.is_dir():
        return True
    if not found.exists():
        raise ValueError("no such file or folder")
    if found.suffix.lower() != ".npz":
        raise ValueError("a file of data is an .npz with arrays x and y; images are in a folder, one folder a class")
    return False


@contextmanager
def _opened(path: str) -> Iterator[np.lib.npyio.NpzFile]:
    """Open an .npz that holds ``x`` and ``y``."""
    try:
        file = np.load(path, allow_pickle=False)
    except Exception as error:  # a damaged archive fails in ways of its own
        raise ValueError(f"not an .npz that can be read ({error})") from None
    if not isinstance(file, np.lib.npyio.NpzFile):
        raise ValueError("not an .npz: it holds one array without a name")
    with file:
        missing = [name for name in ("x", "y") if name not in file.files]
        if missing:
            held = ", ".join(file.files) or "nothing"
            raise ValueError(f"it holds no array {' and no array '.join(missing)} (it holds {held})")
        yield file


def _array(file: np.lib.npyio.NpzFile, name: str, kinds: str, allowed: str) -> NDArray[np.generic]:
    try:
        array: NDArray[np.generic] = file[name]
    except Exception as error:  # zlib.error and others, which would tell the server what is wrong with the data
        raise ValueError(f"its array {name} cannot be read ({error})") from None
    if array.dtype.kind not in kinds:
        raise ValueError(f"{name} is of type {array.dtype}: {allowed} are allowed")
    return array


def _read_arrays(path: str, shape: tuple[int, ...], num_classes: int) -> tuple[Inputs, Labels]:
    with _opened(path) as file:
        x = _array(file, "x", "iuf", "integers and floats")
        y = _array(file, "y", "iu", "integers")
    if y.ndim != 1 or len(y) != (len(x) if x.ndim else -1):
        raise ValueError(f"y has shape {y.shape}, x has {x.shape}: one label an example is needed")
    if shape[0] == 1 and len(shape) == 3 and x.shape[1:] == shape[1:]:
        x = x[:, None]  # images of one channel, without an axis for it
    if x.shape[1:] != shape:
        raise ValueError(f"x has shape {x.shape}: {_wanted(shape)} is needed, n examples first")
    labels = y.astype(np.int64)
    wrong = np.flatnonzero((labels < 0) | (labels >= num_classes))
    if len(wrong):
        raise ValueError(f"label {y[wrong[0]]} in row {wrong[0]} of y: 0 to {num_classes - 1} are allowed")
    if x.dtype.kind == "f" and not np.isfinite(x).all():
        row = int(np.flatnonzero(~np.isfinite(x).reshape(len(x), -1).all(axis=1))[0])
        raise ValueError(f"row {row} of x holds a value that is not finite")
    return x, labels


def _wanted(shape: tuple[int, ...]) -> str:
    full = f"(n, {', '.join(map(str, shape))})"
    return f"{full} or {full.replace('n, 1, ', 'n, ', 1)}" if shape[0] == 1 and len(shape) == 3 else full
