"""CIFAR-10: 32x32 colour images of ten kinds of things (Krizhevsky 2009).

The layout is that of torchvision's ``CIFAR10``. The six pickled batches of 10,000 are looked for in
``data_dir/cifar-10-batches-py`` (``data_dir`` is ``data`` unless given), and are else downloaded there. Train and
test batches are pooled, in this order.
"""

import pickle
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from fedappeal.tasks.examples import Labels, Pixels
from fedappeal.tasks.files.data_files import DataFiles, by_torchvision
from fedappeal.tasks.labelled import ImageFiles, ImagePart

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


class CIFAR10(ImageFiles):
    """Ten kinds of things: 60,000 colour images of 32x32."""

    files = DataFiles(
        task="cifar10",
        layout=Path("cifar-10-batches-py"),
        names=BATCHES,
        remedy="put torchvision's cifar-10-batches-py folder into {data_dir}",
        fetch=by_torchvision("CIFAR10"),
    )
    parts = tuple(ImagePart(name, 10_000) for name in BATCHES)
    input_shape = SHAPE
    num_classes = NUM_CLASSES
    num_examples = 60_000
    mean = 0.4734
    std = 0.2516
    default_model = "cnn"
    class_names = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")

    @classmethod
    def read_part(cls, folder: Path, part: ImagePart) -> tuple[Pixels, Labels]:
        """Return a batch's images and labels."""
        return read_batch(cls.files.path(folder, part.prefix), part.count)
