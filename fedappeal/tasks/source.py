"""A data set to be partitioned: where it comes from and what it looks like. No torch here."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedappeal.protocol.config import TaskSettings

Pixels = NDArray[np.uint8]
Labels = NDArray[np.int64]


@dataclass(frozen=True)
class Source:
    """A labelled data set of images.

    Attributes:
        name: the task's name.
        input_shape: shape of one example, ``(channels, height, width)``.
        num_classes: number of labels C; the labels are 0..C-1.
        num_examples: number of examples.
        scale: the pixels' largest value; pixels are divided by it, then normalised.
        mean: mean of the scaled pixels, a fixed constant.
        std: their standard deviation, a fixed constant.
        default_model: the model for ``model = auto``.
        check: raises ConfigError where `read` could not; must import no torch unless it has to download.
        read: returns pixels ``(num_examples, *input_shape)`` and labels ``(num_examples,)``; cached, so the
            arrays are shared and must not be written to.
    """

    name: str
    input_shape: tuple[int, ...]
    num_classes: int
    num_examples: int
    scale: float
    mean: float
    std: float
    default_model: str
    check: Callable[[Path | None], None]
    read: Callable[[Path | None], tuple[Pixels, Labels]]


def fingerprint(settings: TaskSettings, name: str, input_shape: tuple[int, ...], num_classes: int) -> str:
    """Return what server and client must agree on, 16 hex digits: name, shape, classes, partition and seed."""
    agreed = {field: getattr(settings, field) for field in TaskSettings.model_fields}
    # The model has a check of its own: the layout of the arrays that are sent.
    del agreed["model"]
    agreed |= {"task": name, "input_shape": list(input_shape), "num_classes": num_classes}
    return hashlib.blake2b(json.dumps(agreed, sort_keys=True).encode(), digest_size=8).hexdigest()
