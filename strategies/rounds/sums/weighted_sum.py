"""Running sums of models: weighted (memory O(d), whatever the number of clients), by logarithms, and medians.

An update is small beside its model, so a float32 sum of models rounds much of it away. What is added up here is each
model's difference from the model that was sent: in float32 over a few models, and in float64 over these sums.
"""

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedappeal.protocol.packing import Sums, flower_array, record_of_arrays, view
from strategies.rounds.reply import NotFinite, Refused

if TYPE_CHECKING:
    from flwr.app import Array, ArrayRecord


_BLOCK = 1 << 18
"""Values a step of the arithmetic: what it needs besides the models stays in the processor's cache."""
_AT_ONCE = 2
"""Models that wait until their differences are added up together, which takes less time than one by one."""
_GROUP = 64
"""Models whose differences are added up in float32, before their sum is added to the others in float64."""

CheckedModel = dict[str, NDArray[np.generic]]
"""A model's values by name, each as one vector, that fit a `WeightedSum`."""


class WeightedSum:
    """``sum_k weight_k * model_k`` over models of one layout.

    It is held as ``sum_k weight_k * (model_k - model_sent)`` and the sum of weights.

    Attributes:
        weight: sum of the weights so far.
        count: number of models so far.
    """

    def __init__(self, like: "ArrayRecord") -> None:
        """Take names, shapes and dtypes from the model that was sent."""
        self._like = {name: view(array) for name, array in like.items()}
        self._waiting: list[tuple[dict[str, NDArray[np.generic]], float]] = []
        self._group: dict[str, NDArray[np.floating]] = {}
        self._grouped = 0
        self._sums: dict[str, NDArray[np.float64]] = {}
        self.weight = 0.0
        self.count = 0

    def check(self, arrays: "ArrayRecord") -> CheckedModel:
        """Return a model's values, checked, for `add_checked`; the sum is unchanged.

        Raises:
            Refused: if the model has another layout or a value that is not finite.
        """
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
        self._waiting.append((values, weight))
        if len(self._waiting) == _AT_ONCE:
            self._add_waiting()

    def _add_waiting(self) -> None:
        """Add ``sum_k weight_k * (model_k - model_sent)`` of the models that wait to the group's, block by block."""
        if not self._waiting:
            return
        waiting, self._waiting = self._waiting, []
        for name, like in self._like.items():
            if name not in self._group:
                self._group[name] = np.zeros(like.size, np.float32 if like.dtype == np.float32 else np.float64)
            total, sent = self._group[name], like.reshape(-1)
            weighted = [(model[name], total.dtype.type(weight)) for model, weight in waiting]
            scratch = np.empty(min(_BLOCK, total.size), total.dtype)
            for start in range(0, total.size, _BLOCK):
                block = slice(start, start + _BLOCK)
                part, before = total[block], sent[block]
                difference = scratch[: part.size]
                for values, weight in weighted:
                    np.subtract(values[block], before, out=difference, dtype=total.dtype)
                    difference *= weight
                    part += difference
        self._grouped += len(waiting)
        if self._grouped >= _GROUP:
            self._end_group()

    def _end_group(self) -> None:
        """Move the group's differences to the float64 sums."""
        self._add_waiting()
        for name, like in self._like.items():
            total = self._sums.setdefault(name, np.zeros(like.size))
            if self._grouped:
                total += self._group[name]
                self._group[name].fill(0)
        self._grouped = 0

    def differences(self) -> Sums:
        """Return ``sum_k weight_k * (model_k - model_sent)``, one vector an array: float32 where the model's is."""
        self._end_group()
        return {name: total.astype(self._group[name].dtype) for name, total in self._sums.items()}

    def add(self, arrays: "ArrayRecord", weight: float) -> None:
        """Add one model.

        Raises:
            Refused: as `check`; the sum is unchanged.
        """
        self.add_checked(self.check(arrays), weight)

    def rescale(self, factor: float) -> None:
        """Multiply the weights of all models so far by a factor."""
        self._end_group()
        for total in self._sums.values():
            total *= factor
        self.weight *= factor

    def merge(self, other: "WeightedSum", factor: float) -> None:
        """Add ``factor`` times another sum, which began with the same model."""
        if not other.count:
            return
        for part in (self, other):
            part._end_group()
        for name, total in other._sums.items():
            _multiply_add(self._sums[name], total, factor)
        self.weight += factor * other.weight
        self.count += other.count

    def combine(self, keep: float, scale: float) -> "ArrayRecord":
        """Return ``keep * model_sent + scale * sum`` in the sent layout, and end the sum.

        Arrays that are not floating point (counters of batch normalisation) are rounded.
        """
        self._add_waiting()
        # Of the model that was sent: 1 where the step is along the clients' mean update.
        sent_weight = keep + scale * self.weight
        out: dict[str, Array] = {}
        for name, like in self._like.items():
            # In place, because fresh memory costs more than the arithmetic.
            mixed, total = self._group.pop(name, None), self._sums.pop(name, None)
            if total is not None and mixed is not None:
                total += mixed
            mixed = mixed if total is None else total
            if mixed is None:
                mixed = np.zeros(like.size)
            mixed *= mixed.dtype.type(scale)
            if sent_weight:
                _multiply_add(mixed, like.reshape(-1), sent_weight)
            if not np.issubdtype(like.dtype, np.floating):
                mixed = np.rint(mixed)
            out[name] = flower_array(mixed.astype(like.dtype, copy=False).reshape(like.shape))
        return record_of_arrays(out)


def finite(arrays: "ArrayRecord") -> bool:
    """Whether all floating-point values of a model are finite."""
    views = [view(array) for array in arrays.values()]
    return all(_finite(v.reshape(-1)) for v in views if np.issubdtype(v.dtype, np.floating))


def _finite(values: NDArray[np.generic]) -> bool:
    # A finite sum of squares has finite terms; only where it overflows does each value have to be looked at. The
    # product of a float vector with itself takes a third of the time of NumPy's sum.
    with np.errstate(over="ignore", invalid="ignore"):
        return math.isfinite(float(np.dot(values, values))) or bool(np.isfinite(values).all())


def _multiply_add(total: NDArray[np.floating], values: NDArray[np.generic], weight: float) -> None:
    scratch = np.empty(min(_BLOCK, total.size), dtype=total.dtype)
    factor = total.dtype.type(weight)
    for start in range(0, total.size, _BLOCK):
        part = total[start : start + _BLOCK]
        product = scratch[: part.size]
        np.multiply(values[start : start + _BLOCK], factor, out=product)
        part += product


_LARGEST = 700.0
"""Largest exponent that is raised: exp(709.8) overflows a float64."""


@dataclass
class LogWeightedSum:
    """``sum_k a_k w_k`` in units of the largest a_k so far, so that no a_k overflows.

    Attributes:
        sent: the model that was sent.
        sum: the models, each times ``a_k / unit``.
        log_unit: logarithm of the unit; minus infinity while every a_k was 0.
    """

    sent: "ArrayRecord"
    sum: WeightedSum = field(init=False)
    log_unit: float = -math.inf

    def __post_init__(self) -> None:
        self.sum = WeightedSum(self.sent)

    def add_checked(self, values: CheckedModel, log_weight: float) -> None:
        """Add a model that the sum has checked; ``log_weight``: the logarithm of a_k, less than infinity."""
        if log_weight > self.log_unit:
            if self.sum.count:
                self.sum.rescale(math.exp(self.log_unit - log_weight))
            self.log_unit = log_weight
        self.sum.add_checked(values, self.in_units(log_weight))

    def in_units(self, log_term: float) -> float:
        """Return a term, given by its logarithm, in units of the largest a_k."""
        return 0.0 if self.log_unit == -math.inf else math.exp(min(_LARGEST, log_term - self.log_unit))


_COLUMNS = 1 << 16
"""Coordinates whose models' values are sorted at once."""


def trimmed_mean(values: NDArray[np.generic], trim: int) -> NDArray[np.float64]:
    """Return the mean over the first axis without the ``trim`` smallest and largest values of each column.

    Args:
        values: shape ``(m, n)``.
        trim: less than ``m / 2``; ``(m - 1) // 2`` gives the median.
    """
    ordered = np.sort(values, axis=0)[trim : len(values) - trim]
    return np.asarray(ordered.mean(axis=0, dtype=np.float64))


class HeldModels(WeightedSum):
    """A sum of models that is m times their median or trimmed mean, coordinate by coordinate: ``aggregation``.

    Yin, Chen, Kannan, Bartlett: "Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates". ICML
    2018, definitions 1 and 2. All models of a round are held until its end: memory O(m d).

    Attributes:
        weight: number of models, as ``count``: each counts once.
    """

    def __init__(self, like: "ArrayRecord", trim_share: float) -> None:
        """Begin without models.

        Args:
            like: the model that was sent.
            trim_share: of the values of a coordinate that are left out at either end; 0.5: all but the median.
        """
        super().__init__(like)
        self._trim_share = trim_share
        self._models: list[dict[str, NDArray[np.generic]]] = []

    def trim(self) -> int:
        """Return how many values of a coordinate are left out at either end.

        Of three or more values, at least one.
        """
        return min((self.count - 1) // 2, max(1, int(self._trim_share * self.count + 1e-9)))

    def add_checked(self, values: CheckedModel, weight: float) -> None:
        """Hold one model that `check` returned."""
        self._models.append(values)
        self.weight += 1.0
        self.count += 1

    def combine(self, keep: float, scale: float) -> "ArrayRecord":
        """Return ``keep * model_sent + scale * m * statistic`` in the sent layout.

        The models are let go of.
        """
        for name, like in self._like.items():
            total = self._sums[name] = np.zeros(like.size, dtype=np.float64)
            for start in range(0, like.size if self._models else 0, _COLUMNS):
                part = np.stack([model[name][start : start + _COLUMNS] for model in self._models])
                sent = like.reshape(-1)[start : start + _COLUMNS].astype(np.float64)
                total[start : start + _COLUMNS] = self.count * (trimmed_mean(part, self.trim()) - sent)
        self._models.clear()
        return super().combine(keep, scale)
