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
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedappeal.data.data_size import check_size
from fedappeal.tasks.examples import Labels, Pixels
from fedappeal.tasks.files.data_files import DataFiles, by_torchvision
from fedappeal.tasks.labelled import ImageFiles, ImagePart

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


def names(parts: tuple[ImagePart, ...]) -> tuple[str, ...]:
    """Return the names of all files."""
    return tuple(name for part in parts for name in _names(part))


def _names(part: ImagePart) -> tuple[str, str]:
    """Return the names of a part's files of images and of labels."""
    return f"{part.prefix}-images-idx3-ubyte", f"{part.prefix}-labels-idx1-ubyte"


class IdxTask(ImageFiles):
    """A data set of 28x28 grey images in idx files."""

    input_shape = (1, SIDE, SIDE)
    default_model = "mlp"

    @classmethod
    def read_part(cls, folder: Path, part: ImagePart) -> tuple[Pixels, Labels]:
        """Return a part's images and labels.

        Raises:
            ValueError: a file of another length or format, or another label.
        """
        values = []
        for name, shape in zip(_names(part), ((part.count, SIDE, SIDE), (part.count,)), strict=True):
            path = cls.files.path(folder, name)
            values.append(read_idx(path))
            if values[-1].shape != shape:
                raise ValueError(f"{path} holds {values[-1].shape}, not {shape}")
        images, labels = values
        if (most := labels.max(initial=0)) >= cls.num_classes:
            raise ValueError(f"{folder} holds label {most}, but its labels are 0 to {cls.num_classes - 1}")
        return images[:, None], labels.astype(np.int64)


DEBIAN_DIR = Path("/usr/share/datasets/fashion-mnist")

_PARTS = (ImagePart("train", 60_000), ImagePart("t10k", 10_000))


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


def parts_of(split: str, train: int, test: int) -> tuple[ImagePart, ...]:
    """Return the parts of one split, by torchvision's name of it."""
    return ImagePart(f"emnist-{split}-train", train), ImagePart(f"emnist-{split}-test", test)


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
