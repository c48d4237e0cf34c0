"""Updates of models: how long one is, and a shorter one."""

import math
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedappeal.protocol.packing import array_record, record_of_arrays, serialised, view

if TYPE_CHECKING:
    from flwr.app import ArrayRecord

    from fedappeal.protocol.packing import Sums

_BLOCK = 1 << 15


def zeros_like(model: "ArrayRecord") -> "ArrayRecord":
    """Return a model of zeros in the layout of another."""
    return array_record({name: np.zeros_like(view(array)) for name, array in model.items()})


def squared_distance(one: "ArrayRecord", other: "ArrayRecord | None") -> float:
    """Return ``||w - w_k||^2`` of two models, summed in float64, block by block.

    Arrays that are not floating point (counters) do not count.

    Args:
        one: a model.
        other: a model with the same arrays; None: zeros.
    """
    total = 0.0
    with np.errstate(over="ignore"):  # of float64 models: infinity makes a step 0, which is right
        for _, _, gap in _gaps(one, other, one):
            total += float(gap @ gap)
    return total


def _gaps(
    update: "ArrayRecord", start: "ArrayRecord | None", names: Iterable[str]
) -> Iterator[tuple[str, slice, NDArray[np.float64]]]:
    """Yield ``w_k - w`` of the floating-point arrays block by block: the array's name, the block, its values."""
    for name in names:
        values = view(update[name]).reshape(-1)
        if not np.issubdtype(values.dtype, np.floating):
            continue
        before = None if start is None else view(start[name]).reshape(-1)
        for begin in range(0, values.size, _BLOCK):
            block = slice(begin, begin + _BLOCK)
            yield name, block, np.subtract(values[block], 0.0 if before is None else before[block], dtype=np.float64)


def inner_product(update: "ArrayRecord", start: "ArrayRecord | None", direction: "Sums") -> float:
    """Return ``<w_k - w, c>``, summed in float64; NaN where it overflows.

    Args:
        update: a model.
        start: a model with the same arrays; None: zeros.
        direction: one vector an array, by name; whole numbers do not count.
    """
    total = 0.0
    with np.errstate(over="ignore", invalid="ignore"):
        for name, block, gap in _gaps(update, start, direction):
            total += float(gap @ direction[name][block])
    return total


def log_norm(update: "ArrayRecord", start: "ArrayRecord | None") -> float:
    """Return the logarithm of an update's l2 norm; minus infinity for 0; arguments as `squared_distance`."""
    squared = squared_distance(update, start)
    return 0.5 * math.log(squared) if squared else -math.inf


def shortened(model: "ArrayRecord", start: "ArrayRecord | None", factor: float) -> "ArrayRecord":
    """Return ``start + factor * (model - start)``, in the layout of the model; whole numbers are rounded.

    Args:
        model: any model.
        start: a model with the same arrays; None: zeros.
        factor: 0 to 1.
    """
    if factor == 1.0:
        return model
    out = {}
    for name, array in model.items():
        values = view(array)
        mixed = np.multiply(values, factor, dtype=np.float64)
        if start is not None:
            mixed += np.multiply(view(start[name]), 1.0 - factor, dtype=np.float64)
        if not np.issubdtype(values.dtype, np.floating):
            mixed = np.rint(mixed)
        out[name] = serialised(mixed.astype(values.dtype))
    return record_of_arrays(out)
