"""Digits: scikit-learn's 1797 images of 8x8, inside its wheel, so that nothing is downloaded."""

from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from fedappeal.settings.config import ConfigError
from fedappeal.tasks.examples import Labels, Pixels
from fedappeal.tasks.labelled import PartitionedTask

_MISSING = "task = 'digits' needs scikit-learn: pip install 'fedappeal[data]'"
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
    """Find the file in scikit-learn's wheel without importing scikit-learn, which takes seconds."""
    spec = find_spec("sklearn")
    if spec is None or spec.origin is None:
        raise ConfigError(_MISSING)
    path = Path(spec.origin).parent / _FILE
    if not path.is_file():
        raise ConfigError(f"task = 'digits' needs {path}, which this scikit-learn does not have: install it anew")
    return path


@cache
def _digits() -> tuple[Pixels, Labels]:
    # One line an image: 64 pixels of 0..16, then the label.
    rows = np.loadtxt(_path(), delimiter=",", dtype=np.int64)
    return rows[:, :-1].astype(np.uint8).reshape(-1, 1, 8, 8), rows[:, -1]
