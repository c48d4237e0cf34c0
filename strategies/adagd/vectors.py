"""A model's arrays as one vector, and a step along one."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedappeal.protocol.packing import array_record, view
from fedappeal.settings.config import ConfigError
from strategies.rounds.round import Model

Vector = NDArray[np.floating]


def check_floats(arrays: Model, strategy: str) -> None:
    """Check that a step can be taken on all arrays of a model.

    Raises:
        ConfigError: for an array of whole numbers (a counter of batch normalisation).
    """
    for name, array in arrays.items():
        if not np.issubdtype(dtype := view(array).dtype, np.floating):
            raise ConfigError(f"array '{name}' of dtype {dtype} is not allowed with {strategy}: floating point")


def flat(arrays: Model, names: Sequence[str]) -> Vector:
    """Return the named arrays' values in one vector; one array is not copied."""
    parts: list[NDArray[Any]] = [view(arrays[name]).reshape(-1) for name in names]
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def moved(arrays: Model, step_size: float, direction: NDArray[np.float64]) -> Model:
    """Return ``arrays + step_size * direction``, summed in float64, in the layout of ``arrays``.

    Args:
        arrays: the model.
        step_size: factor.
        direction: one value for each value of the model, in its order.
    """
    out, start = {}, 0
    for name, array in arrays.items():
        values = view(array)
        part = direction[start : start + values.size] * step_size
        np.add(part, values.reshape(-1), out=part)
        out[name] = part.astype(values.dtype, copy=False).reshape(values.shape)
        start += values.size
    return array_record(out)
