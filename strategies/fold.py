"""Folding models into a running weighted sum as they arrive: memory O(d), whatever the number of clients."""

import numpy as np
from flwr.app import Array, ArrayRecord
from numpy.typing import NDArray

from fedappeal.protocol.packing import view

_BLOCK = 1 << 15
"""Values a step of the multiply-add: the scratch block stays in the processor's cache."""


class Refused(ValueError):
    """A reply that is left out; the message says why, for a person to read."""


class WeightedSum:
    """``sum_k weight_k * model_k`` over models of one layout.

    float32 arrays are summed in float32, all others in float64.

    Attributes:
        weight: sum of the weights so far.
        count: number of models so far.
    """

    def __init__(self, like: ArrayRecord) -> None:
        """Take names, shapes and dtypes from the model that was sent."""
        self._like = {name: view(array) for name, array in like.items()}
        self._sums: dict[str, NDArray[np.floating]] = {}
        self.weight = 0.0
        self.count = 0

    def check(self, arrays: ArrayRecord) -> None:
        """Check a model without adding it.

        Raises:
            Refused: if `add` would refuse it.
        """
        self._checked(arrays)

    def add(self, arrays: ArrayRecord, weight: float) -> None:
        """Add one model.

        Raises:
            Refused: if the model has another layout or a value that is not finite; the sum is unchanged.
        """
        views = self._checked(arrays)
        if not self._sums:
            for name, like in self._like.items():
                dtype = np.float32 if like.dtype == np.float32 else np.float64
                self._sums[name] = np.zeros(like.size, dtype=dtype)
        for name, values in views.items():
            _multiply_add(self._sums[name], values, weight)
        self.weight += weight
        self.count += 1

    def merge(self, other: "WeightedSum", factor: float) -> None:
        """Add ``factor`` times another sum over models of the same layout."""
        for name, total in other._sums.items():
            _multiply_add(self._sums.setdefault(name, np.zeros_like(total)), total, factor)
        self.weight += factor * other.weight
        self.count += other.count

    def combine(self, keep: float, scale: float) -> ArrayRecord:
        """Return ``keep * model_sent + scale * sum`` in the layout of the model that was sent.

        Arrays that are not floating point (counters of batch normalisation) are rounded.
        """
        out: dict[str, Array] = {}
        for name, like in self._like.items():
            total = self._sums[name] if self._sums else np.zeros(like.size)
            mixed = total * total.dtype.type(scale)
            if keep:
                mixed += like.reshape(-1).astype(total.dtype, copy=False) * total.dtype.type(keep)
            if not np.issubdtype(like.dtype, np.floating):
                mixed = np.rint(mixed)
            out[name] = Array(mixed.astype(like.dtype, copy=False).reshape(like.shape))
        return ArrayRecord(out)

    def _checked(self, arrays: ArrayRecord) -> dict[str, NDArray[np.generic]]:
        if set(arrays.keys()) != set(self._like):
            raise Refused(f"model has arrays {sorted(arrays.keys())}, expected {sorted(self._like)}")
        views: dict[str, NDArray[np.generic]] = {}
        for name, like in self._like.items():
            try:
                values = view(arrays[name])
            except ValueError as error:
                raise Refused(f"array '{name}': {error}") from None
            if values.shape != like.shape or values.dtype != like.dtype:
                raise Refused(
                    f"array '{name}' has shape {values.shape} and dtype {values.dtype}, "
                    f"expected {like.shape} and {like.dtype}"
                )
            values = values.reshape(-1)
            if np.issubdtype(values.dtype, np.floating) and not _finite(values):
                raise Refused(f"array '{name}' has values that are not finite")
            views[name] = values
        return views


def finite(arrays: ArrayRecord) -> bool:
    """Whether all floating-point values of a model are finite."""
    views = [view(array) for array in arrays.values()]
    return all(_finite(v.reshape(-1)) for v in views if np.issubdtype(v.dtype, np.floating))


def _finite(values: NDArray[np.generic]) -> bool:
    # A finite sum has finite terms; only where the sum overflows does each value have to be looked at.
    with np.errstate(over="ignore", invalid="ignore"):
        return bool(np.isfinite(np.add.reduce(values))) or bool(np.isfinite(values).all())


def _multiply_add(total: NDArray[np.floating], values: NDArray[np.generic], weight: float) -> None:
    scratch = np.empty(min(_BLOCK, total.size), dtype=total.dtype)
    factor = total.dtype.type(weight)
    for start in range(0, total.size, _BLOCK):
        part = total[start : start + _BLOCK]
        product = scratch[: part.size]
        np.multiply(values[start : start + _BLOCK], factor, out=product)
        part += product
