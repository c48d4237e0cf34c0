"""CIFAR-10: 32x32 colour images of ten kinds of things (Krizhevsky 2009).

The layout is that of torchvision's ``CIFAR10``. The six pickled batches of 10,000 are looked for in
``data_dir/cifar-10-batches-py`` (``data_dir`` is ``data`` unless given), and are else downloaded there. Train and
test batches are pooled, in this order.
"""

import pickle
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from fedappeal.settings.config import ConfigError
from fedappeal.tasks.examples import Labels, Pixels
from fedappeal.tasks.files.data_files import DataFiles, by_torchvision
from fedappeal.tasks.labelled import PartitionedTask

SHAPE = (3, 32, 32)
NUM_CLASSES = 10

_MULTIARRAY = "numpy._core.multiarray" if hasattr(np, "_core") else "numpy.core.multiarray"
"""NumPy 2 renamed the module; files name the old one."""


def read_batch(path: Path, count: int) -> tuple[Pixels, Labels]:
    """Return one batch's images ``(count, 3, 32, 32)`` and labels ``(count,)``.

    Raises:
        ValueError: not such a batch; one line that names the file.
    """
    try:
        with path.open("rb") as file:
            batch = _Plain(file).load()
        pixels, labels = np.asarray(batch["data"]), np.asarray(batch["labels"])
    except Exception as error:  # a damaged file can raise any exception in unpickling
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise ValueError(f"{path} is no batch of images ({reason})") from None
    # A row is an image: the red plane, the green, the blue.
    if pixels.dtype != np.uint8 or pixels.shape != (count, 3072) or labels.shape != (count,):
        raise ValueError(
            f"{path} holds {pixels.dtype} of {pixels.shape} with labels of {labels.shape}, "
            f"not uint8 of ({count}, 3072) with {count} labels"
        )
    if labels.dtype.kind not in "iu" or labels.min() < 0 or labels.max() >= NUM_CLASSES:
        raise ValueError(f"the labels in {path} are not all 0 to 9")
    return pixels.reshape(count, *SHAPE), labels.astype(np.int64)


class _Plain(pickle.Unpickler):
    """An unpickler of arrays, lists and text only.

    Any pickle may hold a program.
    """

    def __init__(self, file: BinaryIO) -> None:
        super().__init__(file, encoding="latin1")

    def find_class(self, module: str, name: str) -> Any:
        """Return one of the few names that an array's pickle needs.

        Raises:
            pickle.UnpicklingError: for any other name.
        """
        if (module, name) in {("numpy", "ndarray"), ("numpy", "dtype"), ("_codecs", "encode")}:
            return super().find_class(module, name)
        if module in {"numpy.core.multiarray", "numpy._core.multiarray"} and name in {"_reconstruct", "_frombuffer"}:
            return super().find_class(_MULTIARRAY, name)
        raise pickle.UnpicklingError(f"{module}.{name} has no place in a batch of images")


BATCHES = (*(f"data_batch_{k}" for k in range(1, 6)), "test_batch")


FILES = DataFiles(
    task="cifar10",
    layout=Path("cifar-10-batches-py"),
    names=BATCHES,
    remedy="put torchvision's cifar-10-batches-py folder into {data_dir}",
    fetch=by_torchvision("CIFAR10"),
)


class CIFAR10(PartitionedTask):
    """Ten kinds of things: 60,000 colour images of 32x32."""

    input_shape = SHAPE
    num_classes = NUM_CLASSES
    num_examples = 60_000
    scale = 255.0
    mean = 0.4734
    std = 0.2516
    default_model = "cnn"
    class_names = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")

    def check_data(self) -> None:
        """Find the batches, or download them."""
        FILES.find_or_download(self.data_dir)

    def read(self) -> tuple[Pixels, Labels]:
        """Return all images and labels; read once a process."""
        return _all_images(FILES.find_or_download(self.data_dir).resolve(), self.num_examples // len(BATCHES))


@cache
def _all_images(folder: Path, batch: int) -> tuple[Pixels, Labels]:
    """Return all images and labels of batches that hold ``batch`` images each."""
    pixels = np.empty((len(BATCHES) * batch, *SHAPE), dtype=np.uint8)
    labels = np.empty(len(pixels), dtype=np.int64)
    for k, name in enumerate(BATCHES):
        rows = slice(k * batch, (k + 1) * batch)
        path = FILES.path(folder, name)
        try:
            pixels[rows], labels[rows] = read_batch(path, batch)
        except ValueError as error:
            raise ConfigError(f"task = {FILES.task!r} cannot read its data: {error}") from None
    return pixels, labels
