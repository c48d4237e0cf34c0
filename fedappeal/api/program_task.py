"""A task made of a program's own model, data, loss and metrics, or a known task's."""

import ast
import copy
import hashlib
import inspect
import json
import textwrap
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedappeal.api.measures import Measures
from fedappeal.api.silence import Notice
from fedappeal.core.places import reason
from fedappeal.data.scaling import ByClient
from fedappeal.settings.config import ConfigError, TaskSettings
from fedappeal.tasks import MODELS, is_own_model
from fedappeal.tasks.examples import ClientData, Split, Structure, only_tensor
from fedappeal.tasks.fit import check_fit, first_examples
from fedappeal.tasks.measuring import Evaluator
from fedappeal.tasks.models import build, is_lazy, make_module, materialise, seeded
from fedappeal.tasks.task import Normalisation, Task

MEASURES = "loss and metrics"
"""What a task's parts call them."""
_TAKEN = Task.__annotations__.keys() - {"own"}
"""What a known task says of itself that stays where a program gives parts of its own."""

_MOST_CLASSES = 2**20
"""Of labels that are classes: a model has an output for each, so that large numbers as names fill the memory."""


class GivenTask(Task):
    """A program's own model or data, measured as a classifier."""

    name = "given"
    auto_partition = "natural"
    scaler: ByClient | None = None
    """Scales columns as its clients' tables were; None: they were not."""

    def __init__(
        self,
        settings: TaskSettings,
        clients: Sequence[ClientData] | Task,
        model: Any,
        measures: Measures,
        class_names: Sequence[str] = (),
    ) -> None:
        """Keep the parts.

        Args:
            settings: the run's settings of its task; ``task`` is what it is called.
            clients: each client's data; or a known task, whose data, model and measures count where none are given.
            model: as `GivenModel` takes it; None: the known task's.
            measures: loss and metrics.
            class_names: what the labels are called.

        Raises:
            ConfigError: a model that cannot be made, or labels that have no default loss or metric.
        """
        base = clients if isinstance(clients, Task) else None
        super().__init__(settings)
        self.name = base.name if base else settings.task  # type: ignore[misc]
        self._base = base
        self._clients = () if isinstance(clients, Task) else clients
        if base is not None:
            self.data_dir = base.data_dir
            for name in _TAKEN:
                setattr(self, name, getattr(base, name))
        else:
            self._take_form(measures.loss is None, class_names)
        if model is None and base is None:
            raise ConfigError("model is missing: own data need one (a torch.nn.Module, mlp, logistic, cnn, ...)")
        self._model = None if model is None else GivenModel(model, self.input_shape, self.num_classes, self._call)
        self.measures = measures if base else measures.with_defaults(self._clients[0].train.y, self._zero_or_one())
        if self.measures.loss is not None:
            self.loss_is_mean = bool(getattr(self.measures.loss, "is_mean", False))
        if self.measures.metrics:
            self.metrics_by_name = self.measures.by_name
            self.metric, *others = self.measures.metrics
            self.other_metrics = tuple(metric.name for metric in others)
            self.other_bounds = {metric.name: (metric.low, metric.high) for metric in others}

    def _take_form(self, classifies: bool, class_names: Sequence[str]) -> None:
        first = self._clients[0].train
        if (x := only_tensor(first.x)) is not None:
            self.input_shape, self.input_dtype = tuple(x.shape[1:]), str(x.dtype).removeprefix("torch.")
        y = only_tensor(first.y)
        if classifies and y is not None and y.ndim == 1 and not y.is_floating_point():
            splits = [split for client in self._clients for split in (client.train, client.test)]
            ends = [torch.aminmax(labels) for s in splits if (labels := only_tensor(s.y)) is not None]
            if (least := min(int(low) for low, _ in ends)) < 0:
                raise ConfigError(f"data is not allowed: a label is {least}; labels are 0 to C-1")
            if (largest := max(int(high) for _, high in ends)) >= _MOST_CLASSES:
                raise ConfigError(
                    f"data is not allowed: a label is {largest}; labels are 0 to C-1, with C at most {_MOST_CLASSES} "
                    "(pandas.factorize counts numbers that are names)"
                )
            if least == 1 and not class_names:
                text = f"labels are 1 to {largest}, of classes 0 to {largest}: no example is of class 0 (y - 1?)"
                warnings.warn(text, Notice, stacklevel=2)
            self.num_classes = max(1 + largest, len(class_names))
            self.classes_are_declared = bool(class_names)
        self.class_names = tuple(class_names)

    def _call(self, module: nn.Module) -> Any:
        """Return a module's outputs for client 0's first examples."""
        return self.forward(module, first_examples(self.load(0), 2).x)

    def _zero_or_one(self) -> bool:
        """Whether all labels are 0 or 1."""
        labels = (only_tensor(split.y) for client in self._clients for split in (client.train, client.test))
        return all(y is not None and bool(((y == 0) | (y == 1)).all()) for y in labels)

    def check(self) -> None:
        """Check the known task, and one training step on a few examples.

        Raises:
            ConfigError: one line: what does not fit.
        """
        if self._base is not None:
            self._base.check()
        check_fit(self, self.settings.seed, max((n for client in self._clients for n in client.counts), default=0))
        if self.measures.loss is not None:
            self._check_extremes()

    @torch.no_grad()
    def _check_extremes(self) -> None:
        """Check that an own loss takes the clients' least and largest numeric labels."""
        splits = [(k, split) for k, client in enumerate(self._clients) for split in client.splits]
        ends: dict[int, tuple[int, Split]] = {}
        for k, split in splits:
            if (y := only_tensor(split.y)) is None or y.ndim != 1 or y.is_floating_point():
                return
            for row in (int(y.long().argmin()), int(y.long().argmax())):
                ends.setdefault(int(y[row]), (k, split.take(slice(row, row + 1))))
        if not ends:
            return
        model = self.initial_model(self.settings.seed).eval()
        for label in {min(ends), max(ends)}:
            k, one = ends[label]
            try:
                self.loss(self.forward(model, one.x), one.y)
            except Exception as error:
                raise ConfigError(
                    f"data is not allowed: the loss of client {k}'s label {label} failed: {reason(error)}"
                ) from error

    def initial_model(self, seed: int) -> nn.Module:
        """Return w_0 on the CPU."""
        if self._model is not None:
            return self._model.initial(seed)
        assert self._base is not None
        return self._base.initial_model(seed)

    def load(self, client: int) -> ClientData:
        """Return one client's data, on the CPU.

        Raises:
            ConfigError: there is no such client.
        """
        if self._base is not None:
            return self._base.load(client)
        if not 0 <= client < len(self._clients):
            raise ConfigError(f"client {client} is not there: the data has {len(self._clients)} clients")
        return self._clients[client]

    @property
    def normalisation(self) -> Normalisation | None:
        """The known task's normalisation of inputs; None if it has none."""
        return self._base.normalisation if self._base else None

    def inputs(self, raw: NDArray[Any]) -> Structure:
        """Return the known task's inputs; a program's own data are unchanged.

        Raises:
            ValueError: values that the type of the training data does not have; floats are rounded.
        """
        if self._base:
            return self._base.inputs(raw)
        x = torch.tensor(raw, dtype=getattr(torch, self.input_dtype))
        same = x.isfinite().numpy() if x.is_floating_point() or x.is_complex() else x.numpy() == raw
        if not same.all():
            raise ValueError(f"{raw[~same][0]} is no {self.input_dtype}, which the model was trained on")
        return x

    @cached_property
    def parts(self) -> dict[str, str]:
        """The hashes, by part, that tell this task from others."""
        parts = {}
        if self._base is None:
            digest = hashlib.blake2b(digest_size=8)
            for client in self._clients:
                digest.update(client.fingerprint.encode())
            parts["data"] = digest.hexdigest()
        if self._model is not None:
            parts["model"] = self._model.fingerprint(self.settings.seed)
        loss = getattr(self.measures.loss, "__qualname__", type(self.measures.loss).__name__)
        callables = {"loss": loss if self.measures.loss else "", "metrics": list(self.measures.by_name)}
        if any(callables.values()):
            parts[MEASURES] = json.dumps(callables)
        return parts

    @cached_property
    def fingerprint(self) -> str:
        """The hash on which server and client must agree, 16 hex digits."""
        base = self._base.fingerprint if self._base else super().fingerprint
        text = json.dumps([base, sorted(self.parts.items())])
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


class MeasuredTask(GivenTask):
    """A program's own task with a loss or metrics of its own."""

    # A class apart: evaluation takes a faster path where loss and metrics are a classifier's.
    name = "measured"
    loss_is_mean = metrics_are_means = True
    """Where neither the known task nor an own loss, by its attribute ``is_mean``, says otherwise."""

    def forward(self, model: nn.Module, x: Structure) -> Any:
        """Return the model's outputs, as the known task has them."""
        return self._base.forward(model, x) if self._base else super().forward(model, x)

    def loss(self, outputs: Any, y: Structure, reduction: str = "mean") -> Tensor:
        """Return the program's loss, else the known task's, else cross-entropy."""
        if self.measures.loss is not None:
            return self.measures.mean_loss(outputs, y, reduction)
        return self._base.loss(outputs, y, reduction) if self._base else super().loss(outputs, y, reduction)

    def metrics(self, outputs: Any, y: Structure) -> dict[str, float]:
        """Return the program's metrics, else the known task's, else accuracy.

        Raises:
            ValueError: one output an example, from which no class follows.
        """
        if self.measures.metrics:
            measurement = Evaluator(self, with_loss=False)
            measurement.add(outputs, y)
            return measurement.metrics()
        if self._base:
            return self._base.metrics(outputs, y)
        if (labels := only_tensor(y)) is not None and outputs.numel() == labels.numel():
            raise ValueError("one output an example names no class: metrics of your own are needed")
        return super().metrics(outputs, y)


def given_task(
    settings: TaskSettings,
    clients: Sequence[ClientData] | Task,
    model: Any,
    measures: Measures,
    class_names: Sequence[str] = (),
) -> GivenTask:
    """Return the task of these parts; arguments and errors as `GivenTask`."""
    measured_as_usual = not isinstance(clients, Task) or clients.is_plain()
    plain = measured_as_usual and measures.loss is None and not measures.metrics
    return (GivenTask if plain else MeasuredTask)(settings, clients, model, measures, class_names)


WAYS = f"a torch.nn.Module, its class, a function that makes one, or {', '.join(MODELS.built_in)}"


@dataclass(frozen=True)
class GivenModel:
    """A program's maker of the initial model.

    Attributes:
        source: an instance, whose weights are w_0; a class or a function, called with those of the next two that it
            takes; or the name of a model.
        input_shape: shape of one example.
        num_classes: number of its labels.
        call: calls a module with some examples, by which lazy layers get their shapes.
    """

    source: Any
    input_shape: tuple[int, ...] = ()
    num_classes: int = 0
    call: Callable[[nn.Module], Any] | None = None

    def __post_init__(self) -> None:
        if isinstance(self.source, str):
            if is_own_model(self.source):
                MODELS.package(self.source)
            needs = "whole numbers as labels, no loss of your own" if self.input_shape else "rows or images as inputs"
            if not self.input_shape or not self.num_classes:
                raise ConfigError(
                    f"model = {self.source!r} is not allowed: it needs {needs}; give a torch.nn.Module of your own"
                )
        elif not isinstance(self.source, nn.Module) and not callable(self.source):
            raise ConfigError(f"model = {self.source!r} is not allowed: {WAYS}")

    @property
    def name(self) -> str:
        """The model's name."""
        if isinstance(self.source, str):
            return self.source
        source = type(self.source) if isinstance(self.source, nn.Module) else self.source
        return str(getattr(source, "__qualname__", type(source).__name__))

    def initial(self, seed: int) -> nn.Module:
        """Return w_0 on the CPU, a pure function of the seed.

        Raises:
            ConfigError: what was called failed, or made no module.
        """
        if isinstance(self.source, nn.Module):
            if is_lazy(self.source):
                raise ConfigError(
                    f"model is not allowed: this {self.name} has lazy layers without weights: give what makes it, "
                    "a class or a function"
                )
            return _cpu_copy(self.source)
        with seeded(seed):
            if isinstance(self.source, str):
                return build(self.source, self.input_shape, self.num_classes)
            module = make_module(self.source, self.name, self.input_shape, self.num_classes)
            if self.call is not None:
                materialise(module, self.name, partial(self.call, module))
        return _cpu_copy(module)  # a function may return the same one again

    def fingerprint(self, seed: int) -> str:
        """Return a hash of layout, code and an instance's weights, 16 hex digits."""
        module = self.initial(seed)
        arrays = {name: t.detach().cpu() for name, t in module.state_dict().items()}
        digest = hashlib.blake2b(digest_size=8)
        layout = [(name, tuple(t.shape), str(t.dtype)) for name, t in sorted(arrays.items())]
        digest.update(repr((layout, _code(type(module)))).encode())
        if isinstance(self.source, nn.Module):
            for name in sorted(arrays):
                digest.update(arrays[name].contiguous().reshape(-1).view(torch.uint8).numpy().data)
        return digest.hexdigest()


def _cpu_copy(module: nn.Module) -> nn.Module:
    """Return a copy of a module on the CPU.

    Raises:
        ConfigError: it cannot be copied, or has values that do not travel.
    """
    try:
        copied = copy.deepcopy(module).cpu()
    except Exception as error:
        legacy = any(hasattr(part, "weight_g") and hasattr(part, "weight_v") for part in module.modules())
        hint = (
            ": torch.nn.utils.parametrizations.weight_norm in place of torch.nn.utils.weight_norm" if legacy else ""
        )
        raise ConfigError(f"model is not allowed: it cannot be copied{hint} ({reason(error)})") from error
    if strange := [name for name, array in copied.state_dict().items() if array.dtype == torch.bfloat16]:
        raise ConfigError(
            f"model is not allowed: its '{strange[0]}' is bfloat16, which does not travel (.float() does)"
        )
    return copied


def _code(kind: type) -> str:
    """Return a class's name and its code without comments and layout.

    The name alone where there is no source.
    """
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(kind)))
    except (OSError, TypeError, SyntaxError):
        return kind.__qualname__
    return f"{kind.__qualname__} {ast.dump(tree)}"
