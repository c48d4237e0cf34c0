"""The model and the data, as in Flower's scikit-learn quickstart."""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

LABELS = list(range(10))
Arrays = list[NDArray[Any]]


def initial() -> Arrays:
    """Return the first model: zeros."""
    return [np.zeros((10, 64)), np.zeros(10)]


def model_of(penalty: str, local_epochs: int, arrays: Arrays) -> LogisticRegression:
    """Return a model that goes on from parameters."""
    model = LogisticRegression(penalty=penalty, max_iter=local_epochs, warm_start=True, solver="saga", random_state=0)
    model.classes_ = np.array(LABELS)
    model.coef_, model.intercept_ = arrays[0].copy(), arrays[1].copy()
    return model


def load_data(partition_id: int, num_partitions: int) -> tuple[NDArray[Any], ...]:
    """Return a client's training and test examples; clients after the first have few."""
    images, labels = load_digits(return_X_y=True)
    images, labels = images[partition_id::num_partitions] / 16, labels[partition_id::num_partitions]
    if partition_id:
        images, labels = images[:50], labels[:50]
    cut = int(0.8 * len(labels))
    return images[:cut], images[cut:], labels[:cut], labels[cut:]
