"""Own loss and metrics, and what stands in for them where a program gives none."""

import math
import re
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedappeal.protocol.metric import ACCURACY, Metric
from fedappeal.settings.config import ConfigError
from fedappeal.tasks.examples import Structure, form_text, only_tensor, tensors_of
from fedappeal.tasks.measuring import is_running

Measure = Callable[[Any, Any], Any]
"""Given a model's outputs and the labels of all examples, returns a number."""
UNBOUNDED = (float("-inf"), float("inf"))
MEAN_ABSOLUTE_ERROR = Metric("mean-absolute-error", higher_is_better=False, low=0.0, high=float("inf"))


@dataclass(frozen=True)
class Measures:
    """A program's loss and metrics.

    Attributes:
        loss: loss of outputs and labels; None: the task's own.
        metrics: the metrics, the primary one first; empty: the task's own.
    """

    loss: Measure | None = None
    metrics: Mapping[Metric, Measure] = field(default_factory=dict)

    @classmethod
    def of(cls, loss: Measure | None, metrics: Any) -> "Measures":
        """Return the measures that a program gives.

        Args:
            loss: its loss, or None.
            metrics: a callable, or an object with torchmetrics' interface, or a dict from a name or a `Metric` to
                such; the first is the primary one.

        Raises:
            ConfigError: what is no callable, or a name that is not allowed.
        """
        if loss is not None and (isinstance(loss, type) or not callable(loss)):
            raise ConfigError(f"loss = {loss!r} is not allowed: a callable (outputs, y) -> mean loss is")
        parameters = loss.named_parameters() if isinstance(loss, nn.Module) else ()
        if trained := [name for name, parameter in parameters if parameter.requires_grad]:
            raise ConfigError(
                f"loss = {type(loss).__name__} is not allowed: no client trains a loss's parameters ({trained[0]}); "
                "make them the model's, or fix them: loss.requires_grad_(False)"
            )
        if not metrics:
            return cls(loss)
        by_name = metrics if isinstance(metrics, Mapping) else {_name(metrics): metrics}
        measures: dict[Metric, Measure] = {}
        for name, measure in by_name.items():
            if isinstance(measure, type) or not (callable(measure) or is_running(measure)):
                raise ConfigError(
                    f"metrics = {measure!r} is not allowed: a callable (outputs, y) -> number, or an object with "
                    "update, compute and reset, is"
                )
            metric = name if isinstance(name, Metric) else _metric(str(name), measure)
            if any(metric.name == other.name for other in measures):
                raise ConfigError(f"metrics = {list(by_name)} is not allowed: two are called '{metric.name}'")
            measures[metric] = measure
        return cls(loss, measures)

    def with_defaults(self, y: Structure, zero_or_one: bool = False) -> "Measures":
        """Return the measures, with a default metric for such labels if they have none.

        Args:
            y: some labels.
            zero_or_one: whether all labels, of all clients, are 0 or 1.

        Raises:
            ConfigError: labels without a default loss or metric.
        """
        labels = only_tensor(y)
        classes = labels is not None and labels.ndim == 1 and not labels.is_floating_point()
        if self.loss is None and not classes:
            raise ConfigError(
                f"loss is missing: labels are {form_text(y)} an example, cross-entropy takes whole numbers, one each "
                "(torch.nn.functional.mse_loss, binary_cross_entropy_with_logits, a function of your own)"
            )
        if self.metrics or (classes and self.loss is None):
            return self
        if labels is not None and zero_or_one and (boundary := decision_boundary(self.loss, labels)) is not None:
            return Measures(self.loss, {ACCURACY: partial(binary_accuracy, boundary=boundary)})
        if classes:
            return self
        if labels is None or not labels.is_floating_point():
            raise ConfigError(f"metrics is missing: labels are {form_text(y)} an example, without a default metric")
        return Measures(self.loss, {MEAN_ABSOLUTE_ERROR: mean_absolute_error})

    @property
    def by_name(self) -> dict[str, Measure]:
        """The metrics by their names, the primary one first."""
        return {metric.name: measure for metric, measure in self.metrics.items()}

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


TASKS_OWN = Measures()
"""Nothing of a program's own."""


def mean_absolute_error(outputs: Tensor, y: Tensor) -> Tensor:
    """Return the mean distance of outputs and labels.

    Raises:
        ValueError: shapes that differ: torch would combine each output with each label.
    """
    if outputs.shape != y.shape:
        raise ValueError(f"outputs of shape {tuple(outputs.shape)} beside labels of shape {tuple(y.shape)}")
    return (outputs - y).abs().mean()


def binary_accuracy(outputs: Tensor, y: Tensor, boundary: float) -> Tensor:
    """Return the share of 0/1 labels on the output's side of the boundary.

    Outputs and labels hold equally many values.
    """
    return ((outputs.view_as(y) > boundary) == (y == 1)).double().mean()


_WITH_LOGITS = (functional.binary_cross_entropy_with_logits, nn.BCEWithLogitsLoss)
_WITH_SHARES = (functional.binary_cross_entropy, nn.BCELoss)


def decision_boundary(loss: Measure | None, y: Tensor) -> float | None:
    """Return the output at which binary cross-entropy is indifferent between both labels.

    None if the loss is not binary cross-entropy.

    Args:
        loss: torch's own, or a function around it: that is ln 2 at its boundary, whatever the label is.
        y: some labels.
    """
    inner = loss.func if isinstance(loss, partial) else loss
    shapes = (y.shape, (*y.shape, 1))  # of the outputs for such labels
    for boundary, kinds in ((0.0, _WITH_LOGITS), (0.5, _WITH_SHARES)):
        if inner in kinds or type(inner) in kinds or any(_is_ln_2(loss, boundary, y, shape) for shape in shapes):
            return boundary
    return None


def _is_ln_2(loss: Measure | None, output: float, y: Tensor, shape: tuple[int, ...]) -> bool:
    if loss is None:
        return False
    try:
        outputs = torch.full(shape, output)
        with warnings.catch_warnings(action="ignore"):
            values = [torch.as_tensor(loss(outputs, torch.full_like(y, label))).double().mean() for label in (0, 1)]
    except Exception:  # a function of the program's, which takes other outputs
        return False
    return all(math.isclose(float(value), math.log(2), rel_tol=1e-4) for value in values)


def _metric(name: str, measure: Any) -> Metric:
    """Return a metric without bounds; higher is better, unless the object says otherwise."""
    name = name.replace("_", "-")
    higher = getattr(measure, "higher_is_better", None) is not False
    return ACCURACY if name == ACCURACY.name else Metric(name, higher, *UNBOUNDED)


def _name(measure: Any) -> str:
    """Return the name of a measure that has only its function's."""
    name = str(getattr(measure, "__name__", "") or type(measure).__name__)
    plain = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", name).replace("_", "-").strip("-").lower()
    return plain if name != "<lambda>" else "metric"
