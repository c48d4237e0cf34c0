"""Loss and metrics of a model on one client's examples, whose outputs come in pieces.

A mean over the examples can be summed piece by piece; F1, AUC, R2, a maximum or a class-weighted loss cannot. So a
sum is taken only of what its task says is a mean, a metric with torchmetrics' interface takes in each piece, and
everything else sees all outputs at once.
"""

import copy
import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fedappeal.core.places import reason
from fedappeal.core.requirement import Evaluation
from fedappeal.settings.config import ConfigError
from fedappeal.tasks.examples import Split, Structure, tensors_of
from fedappeal.tasks.task import Task

MOST_BYTES = 2**30
"""Most bytes of outputs that are kept of one client, for what has to see all of them at once."""


class Evaluator:
    """Loss and metrics of one model on one client's examples, taken in piece by piece.

    Attributes:
        keeps: whether all outputs are kept until the end.
        problems: why a metric cannot be computed on these examples, by its name; complete after `metrics`.
    """

    def __init__(self, task: Task, with_loss: bool = True) -> None:
        """Begin with no examples.

        Args:
            task: gives loss and metrics.
            with_loss: whether the loss is wanted.
        """
        by_name = task.metrics_by_name
        self._task, self._with_loss = task, with_loss
        self._functions = {name: metric for name, metric in by_name.items() if not is_running(metric)}
        self._running = {name: _fresh(metric) for name, metric in by_name.items() if is_running(metric)}
        self._own: Callable[..., Sequence[Any]] = (lambda *given: given) if task.is_plain() else copies
        self._sums_loss = with_loss and task.loss_is_mean
        self._sums_metrics = not by_name and task.metrics_are_means
        keeps_loss = with_loss and not task.loss_is_mean
        self.keeps = keeps_loss or bool(self._functions) or not (by_name or task.metrics_are_means)
        self._examples, self._loss_sum, self._bytes = 0, 0.0, 0
        self._sums: dict[str, float] = {}
        self._outputs: list[Any] = []
        self._labels: list[Any] = []
        self.problems: dict[str, str] = {}

    def add(self, outputs: Any, y: Structure) -> None:
        """Add the model's outputs for the next examples, and their labels.

        Raises:
            ConfigError: the outputs that have to be kept are more than `MOST_BYTES`.
        """
        count = int(next(tensors_of(y))[1].shape[0])
        self._examples += count
        if self._sums_loss:
            given = self._own(outputs, y)
            self._loss_sum += float(self._task.loss(given[0], given[1], reduction="sum"))
        if self._sums_metrics:
            for name, value in self._task.metrics(*self._own(outputs, y)).items():
                self._sums[name] = self._sums.get(name, 0.0) + value * count
        for name, metric in self._running.items():
            if name not in self.problems:
                self._try(name, partial(metric.update, *copies(outputs, y, cpu=True)))
        if self.keeps:
            self._bytes += bytes_of(outputs)
            check_bytes(self._bytes)
            self._outputs.append(outputs)
            self._labels.append(y)

    def evaluation(self) -> Evaluation:
        """Return loss and metrics over all examples.

        NaN for the primary metric where it cannot be computed.

        Raises:
            ConfigError: outputs that cannot be joined, or the task's ``metrics`` left out one that it names.
        """
        metrics = self.metrics()
        for name, why in self.problems.items():
            _say_once(name, why)
        score = metrics.pop(self._task.metric.name, math.nan)
        loss = self._loss_sum / self._examples if self._sums_loss else float(self._task.loss(*self._whole()))
        return Evaluation(loss, score, self._task.metric, metrics)

    def metrics(self) -> dict[str, float]:
        """Return the computable metrics by name, the primary one first.

        Over all examples.

        Raises:
            ConfigError: as `evaluation`.
        """
        task, values = self._task, dict[str, float]()
        names = (task.metric.name, *task.other_metrics)
        bounds = {**task.other_bounds, task.metric.name: (task.metric.low, task.metric.high)}
        if self._sums_metrics:
            values = {name: total / self._examples for name, total in self._sums.items()}
        elif task.metrics_by_name:
            for name, metric in self._running.items():
                if name not in self.problems:
                    values[name] = self._try(name, partial(_number_of, metric.compute))
            for name, function in self._functions.items():
                values[name] = self._try(name, partial(_number_of, function, *copies(*self._whole(), cpu=True)))
        else:
            all_missing = dict.fromkeys(names, math.nan)
            values = self._try(task.metric.name, partial(task.metrics, *copies(*self._whole())), all_missing)
        if missing := [name for name in names if name not in values and name not in self.problems]:
            raise ConfigError(
                f"task = '{task.name}' is not allowed: its metrics do not return '{missing[0]}' ({', '.join(values)})"
            )
        for name in names:
            low, high = bounds.get(name, (-math.inf, math.inf))
            value = values.get(name, math.nan)
            inside = min(max(value, low), high)
            if not math.isfinite(value):
                self.problems.setdefault(name, f"it is {value}")
            elif not math.isclose(inside, value, rel_tol=1e-6, abs_tol=1e-6):  # else rounding put it outside
                self.problems.setdefault(name, f"it is {value:g}, its bounds are {low:g} and {high:g}")
            values[name] = inside
        return {name: values[name] for name in names if name not in self.problems}

    def _whole(self) -> tuple[Any, Any]:
        """Return all outputs and labels.

        Raises:
            ConfigError: they cannot be joined.
        """
        if len(self._outputs) > 1:
            counts = [int(next(tensors_of(y))[1].shape[0]) for y in (self._labels[0], self._labels[-1])]
            if counts[0] != counts[1] and (line := rowless(self._outputs[0], self._outputs[-1])):
                raise ConfigError(_NO_WHOLE.format(line))
            self._outputs, self._labels = [_merge(torch.cat, self._outputs)], [_merge(torch.cat, self._labels)]
        return self._outputs[0], self._labels[0]

    def _try(self, name: str, compute: Callable[[], Any], otherwise: Any = math.nan) -> Any:
        """Return the result of a metric's own code; record why it raises."""
        try:
            return compute()
        except Exception as error:
            self.problems.setdefault(name, reason(error))
            return otherwise


_SAID = set[str]()
"""Metrics of which the log has said that they are missing for some client."""


def _say_once(name: str, why: str) -> None:
    if name not in _SAID:
        _SAID.add(name)
        logging.getLogger("fedappeal").warning(
            "metric '%s' cannot be computed on the data of some client, and is missing for it: %s", name, why
        )


def batches(task: Task, data: Split) -> Iterator[Split]:
    """Yield examples in pieces of at most ``evaluation_batch``."""
    for start in range(0, len(data), task.evaluation_batch):
        yield data.take(slice(start, start + task.evaluation_batch))


def is_running(metric: object) -> bool:
    """Whether a metric has torchmetrics' interface: ``update``, ``compute`` and ``reset``."""
    return all(callable(getattr(metric, name, None)) for name in ("update", "compute", "reset"))


def _fresh(metric: Any) -> Any:
    fresh = copy.deepcopy(metric)
    fresh.reset()
    return fresh


def _number_of(measure: Callable[..., Any], *arguments: Any) -> float:
    return float(measure(*arguments))


def bytes_of(outputs: Any) -> int:
    """Return the bytes of a model's outputs."""
    tensors = (tensor for _, tensor in tensors_of(outputs) if isinstance(tensor, Tensor))
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)  # sparse ones have no nbytes


def check_bytes(size: float) -> None:
    """Check that outputs may be kept.

    Raises:
        ConfigError: there are more than `MOST_BYTES`.
    """
    if size > MOST_BYTES:
        raise ConfigError(
            f"loss and metrics need all outputs of a client at once: {size / 2**30:.1f} GiB, where at most "
            f"{MOST_BYTES // 2**30} is kept; give metrics with torchmetrics' update and compute, and say of a loss "
            "that is a mean over the examples that it is (loss.is_mean = True; a task's class: loss_is_mean)"
        )


def copies(*structures: Any, cpu: bool = False) -> list[Any]:
    """Return copies of outputs or labels, which a task's own function may change.

    ``cpu``: on the CPU, where metrics of other libraries take them.
    """

    def copy_of(tensor: Tensor) -> Tensor:
        return tensor.to("cpu" if cpu else tensor.device, copy=True)

    return [map_outputs(copy_of, structure) for structure in structures]


def map_outputs(convert: Callable[[Tensor], Tensor], outputs: Any) -> Any:
    """Return outputs or labels of the same form, each tensor converted."""
    return _merge(lambda tensors: convert(tensors[0]), [outputs])


def rowless(few: Any, many: Any) -> str:
    """Return which tensor of outputs has no row an example; empty if none.

    Args:
        few: outputs for some examples.
        many: outputs of the same form for another number of them.
    """
    for (path, one), (_, other) in zip(tensors_of(few), tensors_of(many), strict=False):
        if isinstance(one, Tensor) and isinstance(other, Tensor) and one.shape[:1] == other.shape[:1]:
            return f"outputs{path} have shape {tuple(one.shape)} for any number of examples"
    return ""


def _merge(merge: Callable[[list[Tensor]], Tensor], pieces: Sequence[Any]) -> Any:
    """Return several pieces' outputs or labels as one of the same form.

    Args:
        merge: makes one tensor of those at one place.
        pieces: of the same form, at least one.

    Raises:
        ConfigError: they have no form that can be joined.
    """
    first = pieces[0]
    try:
        if isinstance(first, Tensor):
            return merge(list(pieces))
        if isinstance(first, Mapping):
            return type(first)({key: _merge(merge, [piece[key] for piece in pieces]) for key in first})  # type: ignore[call-arg]
        if isinstance(first, tuple | list):
            parts = [_merge(merge, part) for part in zip(*pieces, strict=True)]
            return type(first)(*parts) if hasattr(first, "_fields") else type(first)(parts)
    except ConfigError:
        raise
    except TypeError:  # its type does not make one of parts alone: a lone piece stays as it is
        pass
    except (RuntimeError, KeyError, ValueError) as error:
        raise ConfigError(_NO_WHOLE.format(reason(error))) from None
    if len(pieces) == 1 or first is None or isinstance(first, str | int | float):
        return first
    raise ConfigError(_NO_WHOLE.format(f"they hold a {type(first).__name__}"))


_NO_WHOLE = (
    "loss and metrics need all outputs of a client at once, and the outputs of two pieces cannot be joined: {}; "
    "return tensors with an example a row"
)
