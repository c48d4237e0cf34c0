"""Types of a data set's arrays."""

import numpy as np
from numpy.typing import NDArray

Pixels = NDArray[np.uint8]
Features = NDArray[np.float32]
Labels = NDArray[np.int64]
Rows = NDArray[np.int64]
"""Rows of a data set: indices of its examples."""
