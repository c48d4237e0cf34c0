"""Read CIFAR-10's batches: pickles of 32x32 colour images."""

import pickle
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from fedappeal.tasks.arrays import Labels, Pixels

SHAPE = (3, 32, 32)
NUM_CLASSES = 10

_MULTIARRAY = "numpy._core.multiarray" if hasattr(np, "_core") else "numpy.core.multiarray"
"""NumPy 2 renamed the module; files name the old one."""


def read(path: Path, count: int) -> tuple[Pixels, Labels]:
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
    """Unpickler for arrays, lists and text only: any pickle may hold a program."""

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
