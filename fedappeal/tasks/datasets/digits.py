"""Digits: scikit-learn's 1797 images of 8x8, inside its wheel, so that nothing is downloaded."""

from functools import cache
from pathlib import Path

import numpy as np

from fedappeal.tasks.examples import Labels, Pixels
from fedappeal.tasks.files.data_files import package_file
from fedappeal.tasks.labelled import PartitionedTask

_NEEDED = "scikit-learn: pip install 'fedappeal[data]'"
_FILE = Path("datasets", "data", "digits.csv.gz")


class Digits(PartitionedTask):
    """Handwritten digits: 1,797 images of 8x8, from scikit-learn."""

    input_shape = (1, 8, 8)
    num_classes = 10
    num_examples = 1797
    scale = 16.0
    mean = 0.3053
    std = 0.3760
    default_model = "mlp"

    def check_data(self) -> None:
        """Check that scikit-learn is installed."""
        _path()

    def read(self) -> tuple[Pixels, Labels]:
        """Return all images and labels; read once a process."""
        return _digits()


def _path() -> Path:
    return package_file("digits", "sklearn", _FILE, _NEEDED, "scikit-learn does not have: install it anew")


@cache
def _digits() -> tuple[Pixels, Labels]:
    # One line an image: 64 pixels of 0..16, then the label.
    rows = np.loadtxt(_path(), delimiter=",", dtype=np.int64)
    return rows[:, :-1].astype(np.uint8).reshape(-1, 1, 8, 8), rows[:, -1]
