"""Raw examples for a trained model, in batches: of a folder of images, or an ``.npz``."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from client.data import image_folder
from client.data.raw import check_shape, labels_in, read_npz, with_channel
from fedappeal.settings.config import ConfigError
from fedappeal.tasks.files.data_size import check_size
from fedappeal.trained.card import ModelCard

BATCH = 256
"""Examples that are in memory at once, as floats."""
_FLOAT = 4


class Batch(NamedTuple):
    """Some examples.

    Attributes:
        names: a file's path inside the folder, or a row's number, from 0.
        raw: shape ``(n, *input_shape)``, as `fedappeal.tasks.task.Task.inputs` takes them.
        labels: int64 ``(n,)``; None where they are not known.
    """

    names: list[str]
    raw: NDArray[np.generic]
    labels: NDArray[np.int64] | None


@dataclass(frozen=True)
class Examples:
    """Data to predict.

    Attributes:
        batches: the examples; an error while they are read is a `ConfigError` of one line.
        unlabelled: why there are no labels; empty: there are.
    """

    batches: Iterator[Batch]
    unlabelled: str


def examples_in(path: Path, card: ModelCard) -> Examples:
    """Return the examples in a folder of images or an ``.npz``.

    Class folders give labels where all of them are labels of the task; other folders are searched for images.

    Args:
        path: the folder or the file.
        card: says the inputs' shape and the labels.

    Raises:
        ConfigError: one line: the path, what is wrong and what is allowed.
    """
    try:
        if not card.input_shape:
            raise ValueError(f"task '{card.task}' names no input-shape: its inputs are no single tensor")
        if path.is_dir():
            examples = _images(path, card)
        elif not path.is_file():
            raise ValueError("no such file or folder")
        elif path.suffix.lower() != ".npz":
            raise ValueError("a file of data is an .npz with an array x; images are in a folder")
        else:
            examples = _arrays(path, card)
    except (OSError, ValueError) as error:
        raise _refused(path, error) from None
    return Examples(_named(path, examples.batches), examples.unlabelled)


def _refused(path: Path, error: Exception) -> ConfigError:
    return ConfigError(f"data = '{path}' is not allowed: {' '.join(str(error).split())}")


def _named(path: Path, batches: Iterator[Batch]) -> Iterator[Batch]:
    try:
        yield from batches
    except (OSError, ValueError) as error:
        raise _refused(path, error) from None


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

    def check(held: tuple[int, ...]) -> None:
        check_shape(held, shape)
        if not held[0]:
            raise ValueError(f"x has shape {held}: one example at least is needed")

    arrays = read_npz(str(path), check, needed=("x",))
    x, y = with_channel(arrays["x"], shape), arrays.get("y")
    labels, unlabelled = None, "it holds no array y" if y is None else "the task's labels are no classes"
    if y is not None and card.num_classes:
        labels, unlabelled = labels_in(y, card.num_classes).astype(np.int64), ""

    def batches() -> Iterator[Batch]:
        for start in range(0, len(x), BATCH):
            rows = slice(start, start + BATCH)
            names = [str(row) for row in range(len(x))[rows]]
            yield Batch(names, x[rows], None if labels is None else labels[rows])

    return Examples(batches(), unlabelled)
