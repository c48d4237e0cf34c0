"""Fashion-MNIST and EMNIST: tasks on 28x28 grey images in idx files, in torchvision's layout.

Every client splits its own data into train and test (MaxFL, appendix D.1), so a data set's own train and test
images are pooled, in the order of its parts. The files are looked for in ``data_dir/FashionMNIST/raw`` or
``data_dir/EMNIST/raw`` (``data_dir`` is ``data`` unless given), Fashion-MNIST's then where Debian's package puts
them, and are else downloaded: EMNIST's from NIST, all splits in one archive of 0.5 GB.

An idx file is two zero bytes, the type (8: unsigned byte), the number of dimensions, each dimension as a big-endian
32-bit integer, then the values. EMNIST's images (Cohen et al. 2017) lie on their side in the files and are left so,
as torchvision leaves them: no model here cares.
"""

import gzip
import math
import zlib
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedappeal.data.data_size import check_size
from fedappeal.settings.config import ConfigError
from fedappeal.tasks.examples import Labels, Pixels
from fedappeal.tasks.files.data_files import DataFiles, by_torchvision
from fedappeal.tasks.labelled import PartitionedTask

_UNSIGNED_BYTE = 8


def read_idx(path: Path) -> NDArray[np.uint8]:
    """Return the array in an idx file of unsigned bytes (``.gz``: gzipped), read-only.

    Raises:
        ValueError: not such a file, truncated or too long; one line that names it.
        OSError: it cannot be read.
    """
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            head = file.read(4)
            sizes = file.read(4 * head[3]) if len(head) == 4 else b""
            if head[:3] != bytes((0, 0, _UNSIGNED_BYTE)) or len(head) < 4 or len(sizes) < 4 * head[3]:
                raise ValueError(f"{path} is not an idx file of unsigned bytes")
            shape = tuple(int(size) for size in np.frombuffer(sizes, dtype=">u4"))
            data = file.read(_allowed_size(path, math.prod(shape)) + 1)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(f"{path} is not a whole gzip file: {error}") from None
    if len(data) != math.prod(shape):
        start = len(head) + len(sizes)
        more = " or more" if len(data) > math.prod(shape) else ""
        raise ValueError(
            f"{path} should hold {shape} bytes after its header of {start}; it holds {start + len(data)}{more} in all"
        )
    return np.frombuffer(data, dtype=np.uint8).reshape(shape)


def _allowed_size(path: Path, size: int) -> int:
    """Return a size if data may have it in memory, else raise ValueError."""
    try:
        check_size(size, "its values")
    except ValueError as error:
        raise ValueError(f"{path} cannot be read: {error}") from None
    return size


SIDE = 28


@dataclass(frozen=True)
class IdxPart:
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


def names(parts: tuple[IdxPart, ...]) -> tuple[str, ...]:
    """Return the names of all files."""
    return tuple(name for part in parts for name in (part.images, part.labels))


@cache
def read_pool(files: DataFiles, parts: tuple[IdxPart, ...], num_classes: int, folder: Path) -> tuple[Pixels, Labels]:
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
        values = read_idx(path)
        if values.shape != shape:
            raise ValueError(f"{path} holds {values.shape}, not {shape}")
    except (OSError, ValueError) as error:
        raise ConfigError(f"task = {files.task!r} cannot read its data: {error}") from None
    return values


class IdxTask(PartitionedTask):
    """A data set of 28x28 grey images in idx files.

    Attributes:
        files: where its files are.
        parts: what they hold.
    """

    input_shape = (1, SIDE, SIDE)
    scale = 255.0
    default_model = "mlp"
    files: DataFiles
    parts: tuple[IdxPart, ...]

    def check_data(self) -> None:
        """Find the files, or download them."""
        self.files.find_or_download(self.data_dir)

    def read(self) -> tuple[Pixels, Labels]:
        """Return all images and labels; read once a process."""
        return read_pool(self.files, self.parts, self.num_classes, self._folder)

    @cached_property
    def _folder(self) -> Path:
        """The folder of the files from which each client's data are read."""
        return self.files.find_or_download(self.data_dir).resolve()


DEBIAN_DIR = Path("/usr/share/datasets/fashion-mnist")

_PARTS = (IdxPart("train", 60_000), IdxPart("t10k", 10_000))


class FashionMNIST(IdxTask):
    """Pieces of clothing: 70,000 grey images of 28x28."""

    name = "fmnist"
    files = DataFiles(
        task="fmnist",
        layout=Path("FashionMNIST", "raw"),
        names=names(_PARTS),
        remedy="put torchvision's FashionMNIST/raw folder into {data_dir}, or apt-get install dataset-fashion-mnist",
        fetch=by_torchvision("FashionMNIST"),
        elsewhere=lambda: (DEBIAN_DIR,),
    )
    parts = _PARTS
    num_examples = 70_000
    num_classes = 10
    mean = 0.2860
    std = 0.3530
    class_names = (
        *("t-shirt", "trouser", "pullover", "dress", "coat"),
        *("sandal", "shirt", "sneaker", "bag", "ankle-boot"),
    )


def parts_of(split: str, train: int, test: int) -> tuple[IdxPart, ...]:
    """Return the parts of one split, by torchvision's name of it."""
    return IdxPart(f"emnist-{split}-train", train), IdxPart(f"emnist-{split}-test", test)


def _files(task: str, split: str) -> DataFiles:
    return DataFiles(
        task=task,
        layout=Path("EMNIST", "raw"),
        names=names(parts_of(split, 0, 0)),
        remedy=f"put torchvision's EMNIST/raw folder, with the four emnist-{split}-* files, into {{data_dir}}",
        fetch=by_torchvision("EMNIST", split),
    )


class EMNIST(IdxTask):
    """Handwritten characters by class: 814,255 grey images of 28x28, 62 labels.

    The labels are digits, upper and lower case (MaxFL); half of the images are digits.
    """

    files = _files("emnist", "byclass")
    parts = parts_of("byclass", 697_932, 116_323)
    num_examples = 814_255
    num_classes = 62
    mean = 0.1736
    std = 0.3317


class EMNISTBalanced(IdxTask):
    """Handwritten characters, letters of one shape merged: 131,600 grey images of 28x28, 47 labels.

    Each label has 2,800 images; letters whose cases look alike share one (FedALIGN).
    """

    files = _files("emnist-balanced", "balanced")
    parts = parts_of("balanced", 112_800, 18_800)
    num_examples = 131_600
    num_classes = 47
    mean = 0.1751
    std = 0.3332
