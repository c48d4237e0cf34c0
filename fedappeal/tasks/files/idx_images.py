"""Read data sets of 28x28 grey images in idx files: Fashion-MNIST, EMNIST."""

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from fedappeal.settings.config import ConfigError
from fedappeal.tasks.arrays import Labels, Pixels
from fedappeal.tasks.files import idx
from fedappeal.tasks.files.data_files import DataFiles

SIDE = 28


@dataclass(frozen=True)
class Part:
    """One part of a data set: ``PREFIX-images-idx3-ubyte``, ``PREFIX-labels-idx1-ubyte``, and their length."""

    prefix: str
    count: int

    @property
    def images(self) -> str:
        """Name of the file of images."""
        return f"{self.prefix}-images-idx3-ubyte"

    @property
    def labels(self) -> str:
        """Name of the file of labels."""
        return f"{self.prefix}-labels-idx1-ubyte"


def names(parts: tuple[Part, ...]) -> tuple[str, ...]:
    """Return the names of all files."""
    return tuple(name for part in parts for name in (part.images, part.labels))


@cache
def pooled(files: DataFiles, parts: tuple[Part, ...], num_classes: int, folder: Path) -> tuple[Pixels, Labels]:
    """Return a folder's images ``(n, 1, 28, 28)`` and labels ``(n,)``, read once a process.

    The parts follow one another. A part must hold exactly as many images as it says: clients that share out files of
    different lengths would share out different data.

    Args:
        files: names the files.
        parts: what they hold.
        num_classes: number of labels C; the labels are 0..C-1.
        folder: where they are.

    Raises:
        ConfigError: one line: a file of another length or format, or another label.
    """
    total = sum(part.count for part in parts)
    pixels = np.empty((total, 1, SIDE, SIDE), dtype=np.uint8)
    labels = np.empty(total, dtype=np.int64)
    start = 0
    for part in parts:
        rows = slice(start, start + part.count)
        pixels[rows, 0] = _read(files, folder, part.images, (part.count, SIDE, SIDE))
        labels[rows] = _read(files, folder, part.labels, (part.count,))
        start += part.count
    if labels.max() >= num_classes:
        raise ConfigError(
            f"task = {files.task!r} cannot read its data: {folder} holds label {labels.max()}, "
            f"but its labels are 0 to {num_classes - 1}"
        )
    return pixels, labels


def _read(files: DataFiles, folder: Path, name: str, shape: tuple[int, ...]) -> Pixels:
    path = files.path(folder, name)
    try:
        values = idx.read(path)
        if values.shape != shape:
            raise ValueError(f"{path} holds {values.shape}, not {shape}")
    except (OSError, ValueError) as error:
        raise ConfigError(f"task = {files.task!r} cannot read its data: {error}") from None
    return values
