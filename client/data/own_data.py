"""A client's own data: a table, an ``.npz``, a folder of images, or a function.

Nothing here needs the task's own data set, nor what it is read and partitioned with. The examples are scaled as the
task's are, and split by the run's ``train-share``; the draw follows the run's seed and the client-id.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from math import prod
from pathlib import Path

import numpy as np
import torch

from client.data.columns import Columns, OwnDataError, Unfit, choose, is_function, is_table
from client.data.image_folder import class_folders, read_images
from client.data.own_function import find_function, load_by_function
from client.data.raw import LabelReader, Raw, any_shape, check_shape, labels_in, read_npz, scaled, with_channel
from client.data.tables import check_table, names_of, read_table
from fedappeal.core.places import reason
from fedappeal.protocol.draws import generator
from fedappeal.protocol.foreign_text import printable
from fedappeal.protocol.keys import DataProblem
from fedappeal.settings.config import ConfigError, TaskSettings
from fedappeal.tasks.examples import ClientData, Split, only_tensor
from fedappeal.tasks.partitions.assign import check_enough, split
from fedappeal.tasks.task import Task
from fedappeal.trained.card import ModelCard

_LONGEST = 1000
"""Characters of a message: cells and errors may be long."""

log = logging.getLogger("fedappeal.client")


def check_own_data(data: str, columns: Columns | None = None) -> None:
    """Check own data as far as is possible before a run names its task.

    Of a table or an ``.npz`` all rows are read: types, lengths, values; of a folder the class folders; a function is
    imported.

    Raises:
        OwnDataError: one line: the data, what is wrong and what is allowed.
    """
    columns = columns or Columns()
    with named(data):
        if is_function(data):
            find_function(data)
        elif _is_folder(data):
            class_folders(Path(data))
        elif is_table(data):
            chosen = choose(names_of(data), columns)
            # Where the owner names no features, the task may: not every column has to hold numbers.
            check_table(data, chosen if columns.features else Columns((), chosen.label))
        else:
            read_npz(data)


def load_own_data(task: Task, data: str, client_id: str, columns: Columns | None = None) -> ClientData:
    """Read, check, scale and split a client's own data.

    Args:
        task: says the inputs' shape, their scale and the labels; its settings say how to split.
        data: a file ``.csv``, ``.parquet`` or ``.npz``, a folder of images, or ``package.module:load``.
        client_id: on which the split depends.
        columns: of a table.

    Returns:
        The data, on the CPU.

    Raises:
        OwnDataError: one line: the data, what is wrong and what is allowed.
    """
    with named(data):
        examples = (
            load_by_function(task, data) if is_function(data) else _from_files(task, data, columns or Columns())
        )
        split_data = _split(task.settings, client_id, examples)
    parts = split_data.train, split_data.test
    labels = [only_tensor(part.y) for part in parts]
    variety = ""
    if task.num_classes and all(y is not None and not y.is_floating_point() for y in labels):
        classes = len(np.unique(np.concatenate([y.numpy().ravel() for y in labels if y is not None])))
        variety = f" of {classes} of the {task.num_classes} labels"
    total, text = sum(map(len, parts)), "data %s: %d examples%s, %d to train on and %d to test with"
    log.info(text, data, total, variety, *map(len, parts))
    return split_data


def _from_files(task: Task, data: str, columns: Columns) -> Split:
    if is_table(data) and not Path(data).is_dir():
        raw, labels = read_own_table(task, data, columns)
    elif _is_folder(data):
        raw, labels = read_images(Path(data), task.input_shape, task.class_names, task.num_classes)
    else:
        takes_any = type(task).inputs is Task.inputs  # it refuses all of them, and says why
        arrays = read_npz(data, any_shape if takes_any else partial(check_shape, shape=task.input_shape))
        raw, labels = with_channel(arrays["x"], task.input_shape), labels_in(arrays["y"], task.num_classes)
    _check_enough(task.settings, len(labels))
    return Split(scaled(task, raw), torch.from_numpy(labels))


def read_own_table(task: Task | ModelCard, data: str, columns: Columns, needs_label: bool = True) -> tuple[Raw, Raw]:
    """Return a table's raw inputs ``(n, *input_shape)`` and its labels ``(n,)``; no labels without a column of them.

    Args:
        task: says the inputs' shape and columns, and the labels.
        data: a file ``.csv`` or ``.parquet``.
        columns: the owner's choice.
        needs_label: whether there has to be a column of labels.

    Raises:
        Unfit: what cannot be read, or does not fit the task.
    """
    _check_file(Path(data))
    chosen = choose(names_of(data), columns, task.feature_names, needs_label)
    count, shape = len(chosen.features), task.input_shape
    if shape and prod(shape) != count:
        reason = f"{count} columns of features, where the task's inputs have shape {shape}"
        raise Unfit(DataProblem.SHAPE, f"{reason}: {prod(shape)} are needed (features names them)")
    labels = LabelReader(task.class_names, task.num_classes)
    raw = read_table(data, chosen, labels)
    return raw.reshape(-1, *(shape or (count,))), labels.labels()


def _split(settings: TaskSettings, client_id: str, examples: Split | ClientData) -> ClientData:
    if isinstance(examples, Split):
        _check_enough(settings, len(examples))
        rows = split(settings, client_id, np.arange(len(examples)))
        return ClientData(*(examples.take(torch.from_numpy(part)) for part in rows))
    train, test = len(examples.train), len(examples.test)
    if not (train and test):
        raise Unfit(DataProblem.TOO_FEW, "one example at least is needed to train on, and one to test with")
    _check_enough(settings, train + test)
    most = settings.max_train_examples
    if not most or train <= most:
        return examples
    chosen = generator(settings.resolved_data_seed, "split", client=client_id).permutation(train)[:most]
    return ClientData(examples.train.take(torch.from_numpy(chosen)), examples.test)


def _check_enough(settings: TaskSettings, examples: int) -> None:
    try:
        check_enough(settings, examples)
    except ConfigError as error:
        raise Unfit(DataProblem.TOO_FEW, str(error)) from None


@contextmanager
def named(data: str) -> Iterator[None]:
    """Raise every error of the block as an `OwnDataError` that names the data; a MemoryError as it is."""
    try:
        yield
    except MemoryError:
        raise
    except Exception as error:  # a function of the owner's returns anything; its text is not the server's to read
        cause = str(error) if isinstance(error, OSError | ValueError) else reason(error)
        problem = error.problem if isinstance(error, Unfit) else DataProblem.UNREADABLE
        text = f"data = '{data}' is not allowed: {cause}"
        raise OwnDataError(problem, printable(" ".join(text.split()), _LONGEST)) from error


def _check_file(path: Path) -> None:
    if not path.exists():
        raise Unfit(DataProblem.UNREADABLE, "no such file or folder")
    if not path.is_file():
        raise Unfit(DataProblem.UNREADABLE, "it is no file, but a pipe or a device: it would be read without end")


def _is_folder(path: str) -> bool:
    file = Path(path)
    if file.is_dir():
        return True
    _check_file(file)
    if file.suffix.lower() != ".npz" and not is_table(path):
        reason = "a file of data is a .csv or .parquet with a column of labels, or an .npz with arrays x and y"
        raise Unfit(DataProblem.UNREADABLE, f"{reason}; images are in a folder, one folder a class")
    return False
