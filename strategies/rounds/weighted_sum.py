"""A running weighted sum of models: memory O(d), whatever the number of clients."""

import math
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedappeal.protocol.elsewhere import Elsewhere, Part, Sums, elsewhere
from fedappeal.protocol.packing import record_of_arrays, serialised, view

if TYPE_CHECKING:
    from flwr.app import Array, ArrayRecord

_BLOCK = 1 << 17
"""Values a step of the multiply-add: the scratch block stays in the processor's cache."""


class Refused(ValueError):
    """A reply that is left out; the message says why, for a person to read."""


class NotFinite(Refused):
    """A reply that is left out for a value that is not finite."""


FOLDED_AT_ONCE = 64 << 20
"""Bytes of models that wait where they were trained until they are added up there."""

CheckedModel = dict[str, NDArray[np.generic]] | Elsewhere
"""A model's values by name, each as one vector, that fit a `WeightedSum`; or a model that stayed where it is."""


class WeightedSum:
    """``sum_k weight_k * model_k`` over models of one layout.

    float32 arrays are summed in float32, all others in float64. Models that stayed where they were trained are
    added up there, a few at a time.

    Attributes:
        weight: sum of the weights so far.
        count: number of models so far.
    """

    def __init__(self, like: "ArrayRecord") -> None:
        """Take names, shapes and dtypes from the model that was sent."""
        self._like = {name: view(array) for name, array in like.items()}
        self._sums: dict[str, NDArray[np.floating]] = {}
        self._elsewhere: list[Part] = []
        self._bytes_elsewhere = 0
        self.weight = 0.0
        self.count = 0

    def check(self, arrays: "ArrayRecord") -> CheckedModel:
        """Return a model's values, checked, for `add_checked`; the sum is unchanged.

        Raises:
            Refused: if the model has another layout or a value that is not finite.
        """
        if (model := elsewhere(arrays)) is not None:
            return self._checked_elsewhere(model)
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
                raise NotFinite(f"array '{name}' has values that are not finite")
            views[name] = values
        return views

    def add_checked(self, values: CheckedModel, weight: float) -> None:
        """Add one model that `check` returned."""
        self.weight += weight
        self.count += 1
        if isinstance(values, Elsewhere):
            self._elsewhere.append(Part(values, weight))
            self._bytes_elsewhere += values.size
            if self._bytes_elsewhere > FOLDED_AT_ONCE:
                self._gather()
            return
        self._begin()
        for name, own in values.items():
            _multiply_add(self._sums[name], own, weight)

    def _begin(self) -> None:
        if not self._sums:
            for name, like in self._like.items():
                dtype = np.float32 if like.dtype == np.float32 else np.float64
                self._sums[name] = np.zeros(like.size, dtype=dtype)

    def _checked_elsewhere(self, model: Elsewhere) -> Elsewhere:
        if model.trouble:
            raise (NotFinite if model.not_finite else Refused)(model.trouble)
        if (own := {name: (like.shape, like.dtype.name) for name, like in self._like.items()}) != model.form:
            raise Refused(f"model has arrays {dict(model.form)}, expected {own}")
        return model

    def _gather(self) -> None:
        """Have the models that are elsewhere added up there, and add their sums."""
        self._bytes_elsewhere = 0
        while self._elsewhere:
            holder = self._elsewhere[0].model.holder
            parts = [part for part in self._elsewhere if part.model.holder is holder]
            self._elsewhere = [part for part in self._elsewhere if part.model.holder is not holder]
            self._begin()
            for partial in holder.fold(parts):
                for name, total in self._sums.items():
                    total += partial[name]

    def totals(self) -> Sums:
        """Return the sum as it stands, one vector an array."""
        self._gather()
        self._begin()
        return self._sums

    def add(self, arrays: "ArrayRecord", weight: float) -> None:
        """Add one model.

        Raises:
            Refused: as `check`; the sum is unchanged.
        """
        self.add_checked(self.check(arrays), weight)

    def merge(self, other: "WeightedSum", factor: float) -> None:
        """Add ``factor`` times another sum over models of the same layout."""
        self._gather()
        other._gather()
        for name, total in other._sums.items():
            _multiply_add(self._sums.setdefault(name, np.zeros_like(total)), total, factor)
        self.weight += factor * other.weight
        self.count += other.count

    def combine(self, keep: float, scale: float) -> "ArrayRecord":
        """Return ``keep * model_sent + scale * sum`` in the sent layout, and end the sum.

        Arrays that are not floating point (counters of batch normalisation) are rounded.
        """
        self._gather()
        out: dict[str, Array] = {}
        for name, like in self._like.items():
            # In place, because fresh memory costs more than the arithmetic.
            mixed = self._sums.pop(name, None)
            if mixed is None:
                mixed = np.zeros(like.size)
            mixed *= mixed.dtype.type(scale)
            if keep:
                _multiply_add(mixed, like.reshape(-1), keep)
            if not np.issubdtype(like.dtype, np.floating):
                mixed = np.rint(mixed)
            out[name] = serialised(mixed.astype(like.dtype, copy=False).reshape(like.shape))
        return record_of_arrays(out)


def finite(arrays: "ArrayRecord") -> bool:
    """Whether all floating-point values of a model are finite."""
    views = [view(array) for array in arrays.values()]
    return all(_finite(v.reshape(-1)) for v in views if np.issubdtype(v.dtype, np.floating))


def _finite(values: NDArray[np.generic]) -> bool:
    # A finite sum has finite terms; only where the sum overflows does each value have to be looked at. As a product
    # with ones it takes half the time of NumPy's sum.
    with np.errstate(over="ignore", invalid="ignore"):
        if values.dtype in (np.float32, np.float64):
            ones = _ones(values.dtype.name)
            parts = (values[start : start + _BLOCK] for start in range(0, values.size, _BLOCK))
            total = sum(float(np.dot(part, ones[: part.size])) for part in parts)
        else:
            total = float(np.add.reduce(values))
        return math.isfinite(total) or bool(np.isfinite(values).all())


@lru_cache(maxsize=2)
def _ones(dtype: str) -> NDArray[np.floating]:
    return np.ones(_BLOCK, dtype=dtype)


def _multiply_add(total: NDArray[np.floating], values: NDArray[np.generic], weight: float) -> None:
    scratch = np.empty(min(_BLOCK, total.size), dtype=total.dtype)
    factor = total.dtype.type(weight)
    for start in range(0, total.size, _BLOCK):
        part = total[start : start + _BLOCK]
        product = scratch[: part.size]
        np.multiply(values[start : start + _BLOCK], factor, out=product)
        part += product
