"""Own loss and metrics, and what stands in for them where a program gives none."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor

from fedappeal.protocol.metric import ACCURACY, Metric
from fedappeal.settings.config import ConfigError
from fedappeal.tasks.examples import Structure, described, only_tensor, tensors_of

Measure = Callable[[Any, Any], Any]
"""Given a model's outputs and the labels, returns a number: a mean over the examples."""
UNBOUNDED = (float("-inf"), float("inf"))
MEAN_ABSOLUTE_ERROR = Metric("mean-absolute-error", higher_is_better=False, low=0.0, high=float("inf"))


@dataclass(frozen=True)
class Measures:
    """How a program measures a model.

    Attributes:
        loss: mean loss of outputs and labels; None: the task's own.
        metric: the primary metric; None: the task's own.
        metrics: by name, the primary one first; empty: the task's own.
    """

    loss: Measure | None = None
    metric: Metric | None = None
    metrics: Mapping[str, Measure] = field(default_factory=dict)

    @classmethod
    def of(cls, loss: Measure | None, metrics: Any) -> "Measures":
        """Return the measures that a program gives.

        Args:
            loss: its loss, or None.
            metrics: a callable, or a dict from a name or a `Metric` to a callable; the first is the primary one.

        Raises:
            ConfigError: what is no callable, or a name that is not allowed.
        """
        if loss is not None and (isinstance(loss, type) or not callable(loss)):
            raise ConfigError(f"loss = {loss!r} is not allowed: a callable (outputs, y) -> mean loss is")
        if not metrics:
            return cls(loss)
        by_name = metrics if isinstance(metrics, Mapping) else {_name(metrics): metrics}
        measures: dict[str, Measure] = {}
        primary = None
        for name, measure in by_name.items():
            if isinstance(measure, type) or not callable(measure):
                raise ConfigError(f"metrics = {measure!r} is not allowed: a callable (outputs, y) -> number is")
            metric = name if isinstance(name, Metric) else _metric(str(name))
            primary = primary or metric
            measures[metric.name] = measure
        return cls(loss, primary, measures)

    def with_defaults(self, y: Structure) -> "Measures":
        """Return the measures with a metric for labels of this form, where the program gives none.

        Args:
            y: some labels.

        Raises:
            ConfigError: labels without a default loss or metric.
        """
        labels = only_tensor(y)
        classes = labels is not None and labels.ndim == 1 and not labels.is_floating_point()
        if self.loss is None and not classes:
            raise ConfigError(
                f"loss is missing: labels are {described(y)} an example, cross-entropy takes whole numbers, one each "
                "(torch.nn.functional.mse_loss, binary_cross_entropy_with_logits, a function of your own)"
            )
        if self.metrics or classes:
            return self
        if labels is None or not labels.is_floating_point():
            raise ConfigError(f"metrics is missing: labels are {described(y)} an example, without a default metric")
        return Measures(self.loss, MEAN_ABSOLUTE_ERROR, {MEAN_ABSOLUTE_ERROR.name: mean_absolute_error})

    @property
    def others(self) -> tuple[str, ...]:
        """Names of the further metrics."""
        return tuple(self.metrics)[1:]

    def mean_loss(self, outputs: Any, y: Structure, reduction: str) -> Tensor:
        """Return the program's loss; the sum is the mean times the number of examples.

        Raises:
            ValueError: another reduction than ``mean`` and ``sum``.
        """
        assert self.loss is not None
        if reduction not in ("mean", "sum"):
            raise ValueError(f"a loss of one's own has no reduction '{reduction}'")
        mean = cast(Tensor, self.loss(outputs, y))
        return mean if reduction == "mean" else mean * next(tensors_of(y))[1].shape[0]

    def values(self, outputs: Any, y: Structure) -> dict[str, float]:
        """Return the program's metrics by name."""
        return {name: float(measure(outputs, y)) for name, measure in self.metrics.items()}


TASKS_OWN = Measures()
"""Nothing of a program's own."""


def mean_absolute_error(outputs: Tensor, y: Tensor) -> float:
    """Return the mean distance of outputs and labels.

    Raises:
        ValueError: shapes that differ: torch would combine each output with each label.
    """
    if outputs.shape != y.shape:
        raise ValueError(f"outputs of shape {tuple(outputs.shape)} beside labels of shape {tuple(y.shape)}")
    return float(torch.mean(torch.abs(outputs - y)))


def _metric(name: str) -> Metric:
    """Return a metric of a name alone: higher is better, without bounds."""
    name = name.replace("_", "-")
    return ACCURACY if name == ACCURACY.name else Metric(name, True, *UNBOUNDED)


def _name(measure: Any) -> str:
    """Return what a metric is called that has no name but its function's."""
    name = str(getattr(measure, "__name__", "") or type(measure).__name__)
    plain = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", name).replace("_", "-").strip("-").lower()
    return plain if name != "<lambda>" else "metric"
