"""Examples for a trained model, in batches.

They come from images, a table, an ``.npz``, or what the model's task itself reads.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from client.data.own_data import NO_CHOICE, naming_data, read_own_table
from client.data.raw import Raw, check_shape, columns_to_scale, labels_in, read_npz, with_channel
from fedappeal.data import image_folder
from fedappeal.data.columns import Columns, is_table
from fedappeal.data.data_size import check_size
from fedappeal.data.frames import Frame, HuggingFace, package_of
from fedappeal.data.read import check_regular, open_table
from fedappeal.data.scaling import Scaler, Scaling
from fedappeal.data.table import Table
from fedappeal.tasks.examples import Structure, tensors_of
from fedappeal.tasks.table_scale import STANDARD
from fedappeal.tasks.task import Task
from fedappeal.trained.card import ModelCard, read_card

NO_LABEL = "no column of labels is named (label)"
BATCH = 256
"""Examples that are in memory at once, as floats."""
_FLOAT = 4


class Batch(NamedTuple):
    """Some examples.

    Attributes:
        names: a file's path inside the folder, or a row's number, from 0.
        raw: shape ``(n, *input_shape)``, as `fedappeal.tasks.task.Task.inputs` takes them, or what the task itself
            made of a file.
        labels: int64 ``(n,)``, or what the task itself read; None where they are not known.
    """

    names: list[str]
    raw: Raw | Structure
    labels: Raw | Structure | None


@dataclass(frozen=True)
class Examples:
    """Data to predict.

    Attributes:
        batches: the examples; an error while they are read is a `ConfigError` of one line.
        unlabelled: why there are no labels; empty: there are.
    """

    batches: Iterator[Batch]
    unlabelled: str


def examples_of(
    data: Any, card: ModelCard, task: Task, columns: Columns = NO_CHOICE, scaler: Scaler | None = None
) -> Examples:
    """Return the examples of data to predict.

    Class folders give labels where all of them are labels of the task; other folders are searched for images. Arrays
    are raw, as in an ``.npz``; those of columns are in the order of the model's. Tensors are what it takes.

    Args:
        data: the path of a folder of images, a table, an ``.npz``, or a file that the task itself reads; a DataFrame,
            a `datasets.Dataset`, an array ``(n, *input_shape)`` or a tensor.
        card: says the inputs' shape and the labels.
        task: the card's, which may read files of its own.
        columns: of a table.
        scaler: scales a table's columns, where clients standardised theirs; None: as the card says.

    Raises:
        ConfigError: one line: the path or type, what is wrong and what is allowed.
    """
    is_path = isinstance(data, str | PathLike)
    name = str(data) if is_path else type(data).__name__
    with naming_data(name):
        read = _in_files if is_path else _in_program
        examples = read(Path(data) if is_path else data, card, task, columns, scaler)

    def batches() -> Iterator[Batch]:
        with naming_data(name):
            yield from examples.batches

    return Examples(batches(), examples.unlabelled)


def _in_files(path: Path, card: ModelCard, task: Task, columns: Columns, scaler: Scaler | None) -> Examples:
    if not path.is_dir():
        check_regular(path)
    read = task.batches_in(path, columns.features, columns.label, min(BATCH, task.evaluation_batch))
    if read is not None:
        return Examples(_numbered_batches(read), "" if columns.label or not card.num_classes else NO_LABEL)
    if is_table(str(path)):
        return _in_table(open_table(path), card, task, columns, scaler)
    if columns != NO_CHOICE:
        raise ValueError("features and label are of a table")
    if not card.input_shape:
        raise ValueError(f"task '{card.task}' names no input-shape: its inputs are no single tensor")
    if path.is_dir():
        return _images(path, card)
    if path.suffix.lower() != ".npz":
        raise ValueError(
            "a file of data is a .csv, a .jsonl, a .parquet or an .npz with an array x; images are in a folder"
        )
    return _arrays(path, card)


def _in_program(data: Any, card: ModelCard, task: Task, columns: Columns, scaler: Scaler | None) -> Examples:
    if package_of(data):
        return _in_table(_table_of(data), card, task, columns, scaler)
    if columns != NO_CHOICE:
        raise ValueError("features and label are of a table")
    if isinstance(data, torch.Tensor):
        if isinstance(scaler, Scaling):  # not the run's own, which is for columns
            raise ValueError("scale-from scales columns as they are: a tensor is what the model takes")
        if not data.ndim or not data.isfinite().all():
            raise ValueError(f"a tensor of shape {tuple(data.shape)}: finite numbers, n examples, are needed")
        return _in_memory(data.float() if data.dtype == torch.float64 else data, None, NO_LABEL)
    if not isinstance(data, np.ndarray) or isinstance(data, np.ma.MaskedArray):
        raise ValueError("a path, a DataFrame, a datasets.Dataset, a NumPy array or a tensor is")
    if data.dtype.kind not in "biuf" or not data.ndim or not np.isfinite(data).all():
        raise ValueError(f"an array of type {data.dtype} and shape {data.shape}: finite numbers are needed")
    check_shape(data.shape, card.input_shape)
    return _in_memory(
        _inputs(with_channel(data, card.input_shape), None, card, task, scaler), None, "an array has no labels"
    )


def _table_of(data: Any) -> Table:
    return Frame(data) if package_of(data) == "pandas" else HuggingFace(data)


def _in_table(table: Table, card: ModelCard, task: Task, columns: Columns, scaler: Scaler | None) -> Examples:
    x, y = read_own_table(card, table, columns, needs_label=False)
    if not len(x):
        raise ValueError("it has no rows")
    labels = y if columns.label else None
    return _in_memory(_inputs(x, table, card, task, scaler), labels, NO_LABEL)


def _inputs(x: Raw, table: Table | None, card: ModelCard, task: Task, scaler: Scaler | None) -> "Raw | torch.Tensor":
    """Return columns as the model's clients scaled theirs.

    Raises:
        ValueError: it is not known how, or they were not scaled.
    """
    if card.scale != STANDARD:
        if scaler is not None:
            raise ValueError("scale-from is of a model whose clients standardised their tables: this one's did not")
        return x
    if (scaler := scaler or card.scaling) is None:
        raise ValueError(
            "each client standardised its table by its own training data: scale-from names a table of such data, or "
            "a client's own model (preferred-RUN.safetensors)"
        )
    return torch.from_numpy(scaler.scaled(columns_to_scale(task, x), table)).float()


def scaler_from(source: Any, card: ModelCard, task: Task, columns: Columns = NO_CHOICE) -> Scaler:
    """Return the scaling by a table's rows, or of a client's own model.

    The table is a file or in memory.

    Raises:
        ConfigError: one line: neither is there, or it does not fit the model.
    """
    with naming_data(source if isinstance(source, str) else type(source).__name__, "scale-from"):
        if isinstance(source, str) and source.endswith(".safetensors"):
            if (scaling := read_card(Path(source)).scaling) is None:
                raise ValueError("it is no model of a client that standardised its table")
            if len(scaling.mean) != prod(card.input_shape):
                raise ValueError(f"it scales {len(scaling.mean)} columns, the model has {prod(card.input_shape)}")
            return scaling
        if not isinstance(source, str) and not package_of(source):
            raise ValueError("a path of a table or of a client's model, a DataFrame or a datasets.Dataset is")
        table = open_table(Path(source)) if isinstance(source, str) else _table_of(source)
        x, _ = read_own_table(card, table, Columns(columns.features), needs_label=False)
        if not len(x):
            raise ValueError("it has no rows")
        return Scaling.of(columns_to_scale(task, x))


def _numbered_batches(read: Iterator[tuple[Structure, Structure | None]]) -> Iterator[Batch]:
    first = 0
    for x, y in read:
        count = len(next(tensors_of(x))[1])
        yield Batch([str(row) for row in range(first, first + count)], x, y)
        first += count


def _images(root: Path, card: ModelCard) -> Examples:
    shape = card.input_shape
    image_folder.check_image_shape(shape)
    files, noticed, unlabelled = _labelled_images(root, card)
    if not files:
        raise ValueError(image_folder.NO_IMAGES)
    check_size(min(len(files), BATCH) * prod(shape) * _FLOAT, "a batch of its images")

    def batches() -> Iterator[Batch]:
        for start in range(0, len(files), BATCH):
            some = files[start : start + BATCH]
            raw = np.empty((len(some), *shape), dtype=np.float32)
            for row, (file, _) in enumerate(some):
                image_folder.read_image(file, raw[row], noticed)
            labels = None if unlabelled else np.array([label for _, label in some], dtype=np.int64)
            yield Batch([str(file.relative_to(root)) for file, _ in some], raw, labels)
        noticed.say(root, len(files), shape)

    return Examples(batches(), unlabelled)


def _labelled_images(root: Path, card: ModelCard) -> tuple[list[tuple[Path, int]], image_folder.FolderNoticed, str]:
    """Return the images with their labels, what was noticed of them, and why they have no labels."""
    try:
        labels = image_folder.labels_of(image_folder.class_folders(root), card.class_names, card.num_classes)
        shown = (file for file in root.iterdir() if file.is_file() and not image_folder.is_hidden(file.name))
        if any(file.suffix.lower() in image_folder.EXTENSIONS for file in shown):
            raise ValueError("it holds images outside of class folders")
        return *image_folder.labelled_files(root, labels), ""
    except ValueError as error:
        return *image_folder.labelled_files(root, {"": -1}), str(error)


def _arrays(path: Path, card: ModelCard) -> Examples:
    arrays = read_npz(str(path), card.input_shape, needed=("x",))
    if not len(arrays["x"]):
        raise ValueError(f"x has shape {arrays['x'].shape}: one example at least is needed")
    y = arrays.get("y")
    labels = None if y is None else labels_in(y, card.num_classes)
    return _in_memory(with_channel(arrays["x"], card.input_shape), labels, "it holds no array y")


def _in_memory(x: "Raw | torch.Tensor", labels: Raw | None, unlabelled: str) -> Examples:
    def batches() -> Iterator[Batch]:
        for start in range(0, len(x), BATCH):
            rows = slice(start, start + BATCH)
            names = [str(row) for row in range(len(x))[rows]]
            yield Batch(names, x[rows], None if labels is None else labels[rows])

    return Examples(batches(), unlabelled if labels is None else "")
