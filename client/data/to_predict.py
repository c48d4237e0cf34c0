"""Examples for a trained model, in batches: of images, a table, an ``.npz``, or what its task itself reads."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import NamedTuple

import numpy as np

from client.data import image_folder
from client.data.columns import TABLES, Columns
from client.data.own_data import named, read_own_table
from client.data.raw import Raw, check_shape, labels_in, read_npz, with_channel
from fedappeal.tasks.examples import Structure, tensors_of
from fedappeal.tasks.files.data_size import check_size
from fedappeal.tasks.task import Task
from fedappeal.trained.card import ModelCard

NO_CHOICE = Columns()
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


def examples_in(path: Path, card: ModelCard, task: Task | None = None, columns: Columns = NO_CHOICE) -> Examples:
    """Return the examples in a folder of images, a table, an ``.npz``, or a file that the task itself reads.

    Class folders give labels where all of them are labels of the task; other folders are searched for images.

    Args:
        path: the folder or the file.
        card: says the inputs' shape and the labels.
        task: the card's, which may read files of its own; None: it reads none.
        columns: of a table.

    Raises:
        ConfigError: one line: the path, what is wrong and what is allowed.
    """
    with named(str(path)):
        if not path.exists():
            raise ValueError("no such file or folder")
        size = min(BATCH, task.evaluation_batch) if task else BATCH
        read = task.batches_in(path, columns.features, columns.label, size) if task else None
        if read is not None:
            examples = Examples(_numbered(read), "" if columns.label or not card.num_classes else NO_LABEL)
        elif path.suffix.lower() in TABLES and path.is_file():
            x, y = read_own_table(card, str(path), columns, needs_label=False)
            if not len(x):
                raise ValueError("it has no rows")
            examples = _in_memory(x, y.astype(np.int64) if columns.label else None, NO_LABEL, card)
        elif columns != NO_CHOICE:
            raise ValueError("features and label are of a table")
        elif not card.input_shape:
            raise ValueError(f"task '{card.task}' names no input-shape: its inputs are no single tensor")
        elif path.is_dir():
            examples = _images(path, card)
        elif path.suffix.lower() != ".npz":
            raise ValueError(
                "a file of data is a .csv, a .parquet or an .npz with an array x; images are in a folder"
            )
        else:
            examples = _arrays(path, card)
    return Examples(_named_batches(path, examples.batches), examples.unlabelled)


def _numbered(read: Iterator[tuple[Structure, Structure | None]]) -> Iterator[Batch]:
    first = 0
    for x, y in read:
        count = len(next(tensors_of(x))[1])
        yield Batch([str(row) for row in range(first, first + count)], x, y)
        first += count


def _named_batches(path: Path, batches: Iterator[Batch]) -> Iterator[Batch]:
    with named(str(path)):
        yield from batches


def _images(root: Path, card: ModelCard) -> Examples:
    shape = card.input_shape
    image_folder.check_image_shape(shape)
    files, unlabelled = _labelled(root, card)
    if not files:
        raise ValueError(image_folder.NO_IMAGES)
    check_size(min(len(files), BATCH) * prod(shape) * _FLOAT, "a batch of its images")

    def batches() -> Iterator[Batch]:
        for start in range(0, len(files), BATCH):
            some = files[start : start + BATCH]
            raw = np.empty((len(some), *shape), dtype=np.float32)
            for row, (file, _) in enumerate(some):
                image_folder.read_image(file, raw[row])
            labels = None if unlabelled else np.array([label for _, label in some], dtype=np.int64)
            yield Batch([str(file.relative_to(root)) for file, _ in some], raw, labels)

    return Examples(batches(), unlabelled)


def _labelled(root: Path, card: ModelCard) -> tuple[list[tuple[Path, int]], str]:
    """Return the images with their labels, and why they have none."""
    try:
        labels = image_folder.labels_of(image_folder.class_folders(root), card.class_names, card.num_classes)
        if any(file.suffix.lower() in image_folder.EXTENSIONS for file in root.iterdir() if file.is_file()):
            raise ValueError("it holds images outside of class folders")
        return image_folder.labelled_files(root, labels)[0], ""
    except ValueError as error:
        return image_folder.labelled_files(root, {"": -1})[0], str(error)


def _arrays(path: Path, card: ModelCard) -> Examples:
    shape = card.input_shape

    def check(actual: tuple[int, ...]) -> None:
        check_shape(actual, shape)
        if not actual[0]:
            raise ValueError(f"x has shape {actual}: one example at least is needed")

    arrays = read_npz(str(path), check, needed=("x",))
    y = arrays.get("y")
    labels = labels_in(y, card.num_classes).astype(np.int64) if y is not None and card.num_classes else y
    return _in_memory(with_channel(arrays["x"], shape), labels, "it holds no array y", card)


def _in_memory(x: Raw, labels: Raw | None, unlabelled: str, card: ModelCard) -> Examples:
    if labels is not None:
        unlabelled = "" if card.num_classes else "the task's labels are no classes"

    def batches() -> Iterator[Batch]:
        for start in range(0, len(x), BATCH):
            rows = slice(start, start + BATCH)
            names = [str(row) for row in range(len(x))[rows]]
            yield Batch(names, x[rows], None if labels is None or unlabelled else labels[rows])

    return Examples(batches(), unlabelled)
