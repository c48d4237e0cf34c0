"""A client's own data: a table, an ``.npz``, a folder of images, or a function.

Nothing here needs the task's own data set, nor what it is read and partitioned with. The examples are scaled as the
task's are, and split by the run's ``train-share``; the draw follows the run's seed and the client-id.
"""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from math import prod
from pathlib import Path

import numpy as np
import torch

from client.data.own_function import find_function, load_by_function
from client.data.raw import Raw, columns_to_scale, labels_in, read_npz, scaled_inputs, with_channel
from client.data.refused import OwnDataError, is_function
from fedappeal.core.places import reason
from fedappeal.data.cells import Classes
from fedappeal.data.columns import Columns, Unfit, check_label, choose, is_table
from fedappeal.data.image_folder import class_folders, read_images
from fedappeal.data.read import Features, check_regular, check_rows, narrow_integers, open_table, read_numbers
from fedappeal.data.table import Table
from fedappeal.protocol.draws import generator
from fedappeal.protocol.foreign_text import printable
from fedappeal.protocol.keys import DataProblem
from fedappeal.settings.config import ConfigError, RunConfig, TaskSettings
from fedappeal.tasks import TASKS, load_task
from fedappeal.tasks.examples import ClientData, Split, only_tensor
from fedappeal.tasks.partitions.assign import check_enough, split_rows
from fedappeal.tasks.table_scale import standardised_data, standardises
from fedappeal.tasks.task import Task
from fedappeal.trained.card import ModelCard

_LONGEST = 1000
"""Characters of a message: cells and errors may be long."""

log = logging.getLogger("fedappeal.client")
NO_CHOICE = Columns()


def check_own_data(data: str, columns: Columns = NO_CHOICE) -> None:
    """Check own data as far as is possible before a run names its task.

    Of a table or an ``.npz`` all rows are read: types, lengths, values; of a folder the class folders; a function is
    imported.

    Raises:
        OwnDataError: one line: the data, what is wrong and what is allowed.
    """
    with naming_data(data):
        if is_function(data):
            find_function(data)
        elif is_table(data):
            # Where the owner names no features, the task may: not every column has to hold numbers.
            table = open_table(Path(data))
            check_label(table.names, columns)
            check_rows(table, columns)
        elif _is_folder(data):
            class_folders(Path(data))
        else:
            read_npz(data)


def load_own_data(task: Task, data: str, client_id: str, columns: Columns = NO_CHOICE) -> ClientData:
    """Read, check, scale and split a client's own data.

    Args:
        task: says the inputs' shape, their scale and the labels; its settings say how to split.
        data: a table (`fedappeal.data.read.open_table`), an ``.npz``, a folder of images, or
            ``package.module:load``.
        client_id: on which the split depends.
        columns: of a table.

    Returns:
        The data, on the CPU.

    Raises:
        OwnDataError: one line: the data, what is wrong and what is allowed.
    """
    with naming_data(data):
        examples = load_by_function(task, data) if is_function(data) else _from_files(task, data, columns)
        split_data = _client_data(task.settings, client_id, examples)
        if is_table(data) and not is_function(data) and standardises(task):
            split_data = standardised_data(split_data)
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
    if is_table(data):
        raw, labels = read_own_table(task, open_table(Path(data)), columns)
    elif _is_folder(data):
        raw, labels = read_images(Path(data), task.input_shape, task.class_names, task.num_classes)
    else:
        takes_none = type(task).inputs is Task.inputs  # it refuses all of them, and says why
        arrays = read_npz(data, () if takes_none else task.input_shape)
        raw, labels = with_channel(arrays["x"], task.input_shape), labels_in(arrays["y"], task.num_classes)
    _check_enough(task.settings, len(labels))
    if is_table(data) and standardises(task):
        return Split(torch.from_numpy(columns_to_scale(task, raw)), torch.from_numpy(labels))
    return Split(scaled_inputs(task, raw), torch.from_numpy(labels))


def read_own_table(
    task: Task | ModelCard, table: Table, columns: Columns, needs_label: bool = True
) -> tuple[Raw, Raw]:
    """Return a table's raw inputs ``(n, *input_shape)`` and its labels ``(n,)``.

    There are no labels without a column of them.

    Args:
        task: says the inputs' shape and columns, and the labels.
        table: the table.
        columns: the owner's choice.
        needs_label: whether there has to be a column of labels.

    Returns:
        Inputs that are integers where each number is a whole one, as it is written or by its column's type; else
        float64; a category is one for each of its values. Labels that are int64 classes, or float32 where they are
        none.

    Raises:
        Unfit: what cannot be read, or does not fit the task.
    """
    chosen = choose(table.names, columns, task.feature_names, needs_label)
    features, shape = Features(table, chosen.features, task.categories), task.input_shape
    if shape and prod(shape) != features.width:
        each = ", one a value of each category" if features.width != len(features.names) else ""
        reason = f"{features.width} columns of features{each}, where the task's inputs have shape {shape}"
        raise Unfit(DataProblem.SHAPE, f"{reason}: {prod(shape)} are needed (features names them)")
    x, whole, labels = read_numbers(features, chosen.label, Classes(task.class_names, task.num_classes))
    kind = np.int64 if task.num_classes else np.float32
    return narrow_integers(x, whole).reshape(-1, *(shape or (features.width,))), labels.astype(kind)


def _client_data(settings: TaskSettings, client_id: str, examples: Split | ClientData) -> ClientData:
    if isinstance(examples, Split):
        _check_enough(settings, len(examples))
        rows = split_rows(settings, client_id, np.arange(len(examples)))
        return ClientData(*(examples.take(torch.from_numpy(part)) for part in rows))
    train, test = len(examples.train), len(examples.test)
    if not (train and test):
        raise Unfit(DataProblem.TOO_FEW, "one example at least is needed to train on, and one to test with")
    _check_enough(settings, train + test)
    most = settings.max_train_examples
    if not most or train <= most:
        return examples
    chosen = generator(settings.resolved_data_seed, "split", client=client_id).permutation(train)[:most]
    return replace(examples, train=examples.train.take(torch.from_numpy(chosen)))


def _check_enough(settings: TaskSettings, examples: int) -> None:
    try:
        check_enough(settings, examples)
    except ConfigError as error:
        raise Unfit(DataProblem.TOO_FEW, str(error)) from None


@contextmanager
def naming_data(data: str, setting: str = "data") -> Iterator[None]:
    """Raise every error of the block as an `OwnDataError` that names the data; a MemoryError as it is."""
    try:
        yield
    except MemoryError:
        raise
    except Exception as error:  # a function of the owner's returns anything; its text is not the server's to read
        cause = str(error) if isinstance(error, OSError | ValueError) else reason(error)
        problem = error.problem if isinstance(error, Unfit) else DataProblem.UNREADABLE
        text = f"{setting} = '{data}' is not allowed: {cause}"
        raise OwnDataError(problem, printable(" ".join(text.split()), _LONGEST)) from error


def _is_folder(path: str) -> bool:
    file = Path(path)
    if file.is_dir():
        return True
    check_regular(file)
    if file.suffix.lower() != ".npz":
        reason = (
            "a file of data is a .csv, .jsonl or .parquet with a column of labels, or an .npz with arrays x and y"
        )
        raise Unfit(DataProblem.UNREADABLE, f"{reason}; images are in a folder, one folder a class")
    return False


def fitting_tasks(data: str, columns: Columns, tasks: Sequence[str]) -> tuple[dict[str, int], list[str]]:
    """Return the number of examples for each task that the data fit, and a reason for each other one.

    Args:
        data: the owner's.
        columns: of a table.
        tasks: names, as a server says them; those of foreign code are left out, and tried when a run asks.
    """
    fits, reasons = {}, []
    for name in dict.fromkeys(tasks):
        if name not in TASKS.built_in:
            continue
        try:
            task = load_task(RunConfig.parse({"task": name}).task_settings())
        except (ConfigError, ImportError):  # settings of the run's, or a library, are missing here
            continue
        try:
            examples = load_own_data(task, data, "", columns)
        except OwnDataError as error:
            reasons.append(f"{name}: {error}")
        else:
            fits[name] = len(examples.train) + len(examples.test)
    return fits, reasons
