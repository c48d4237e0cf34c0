"""A task made of a program's own model, data, loss and metrics, or a known task's."""

import ast
import copy
import hashlib
import inspect
import json
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedappeal.api.measures import Measures
from fedappeal.settings.config import ConfigError, TaskSettings
from fedappeal.tasks import MODELS, is_own_model
from fedappeal.tasks.examples import ClientData, Structure, only_tensor
from fedappeal.tasks.fit import check_fit
from fedappeal.tasks.models import build, made, seeded
from fedappeal.tasks.task import Normalisation, Task

MEASURES = "loss and metrics"
"""What a task's parts call them."""
_TAKEN = Task.__annotations__.keys() - {"own"}
"""What a known task says of itself that stays where a program gives parts of its own."""


class GivenTask(Task):
    """A program's own model or data, measured as a classifier."""

    name = "given"
    auto_partition = "natural"

    def __init__(
        self,
        settings: TaskSettings,
        clients: Sequence[ClientData] | Task,
        model: Any,
        measures: Measures,
        class_names: Sequence[str] = (),
    ) -> None:
        """Take the parts.

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
        self._model = None if model is None else GivenModel(model, self.input_shape, self.num_classes)
        self.measures = measures if base else measures.with_defaults(self._clients[0].train.y)
        if self.measures.metric is not None:
            self.metric, self.other_metrics = self.measures.metric, self.measures.others

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
            self.num_classes = max(1 + max(int(high) for _, high in ends), len(class_names))
            self.classes_are_declared = bool(class_names)
        self.class_names = tuple(class_names)

    def check(self) -> None:
        """Check the known task, and that model, data and measures fit: one step on a few examples.

        Raises:
            ConfigError: one line: what does not fit.
        """
        if self._base is not None:
            self._base.check()
        check_fit(self, self.settings.seed)

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
        """How the known task's `inputs` scales; None: there is none."""
        return self._base.normalisation if self._base else None

    def inputs(self, raw: NDArray[Any]) -> Structure:
        """Return inputs as the known task makes them; a program's own are what the model takes."""
        if self._base:
            return self._base.inputs(raw)
        return torch.from_numpy(raw).to(getattr(torch, self.input_dtype))

    @cached_property
    def parts(self) -> dict[str, str]:
        """What tells this task from another, by part: hashes of what the program gave."""
        parts = {}
        if self._base is None:
            digest = hashlib.blake2b(digest_size=8)
            for client in self._clients:
                digest.update(client.fingerprint.encode())
            parts["data"] = digest.hexdigest()
        if self._model is not None:
            parts["model"] = self._model.fingerprint(self.settings.seed)
        loss = getattr(self.measures.loss, "__qualname__", type(self.measures.loss).__name__)
        callables = {"loss": loss if self.measures.loss else "", "metrics": list(self.measures.metrics)}
        if any(callables.values()):
            parts[MEASURES] = json.dumps(callables)
        return parts

    @property
    def fingerprint(self) -> str:
        """What server and client must agree on, 16 hex digits."""
        return self._fingerprint

    @cached_property
    def _fingerprint(self) -> str:
        base = self._base.fingerprint if self._base else super().fingerprint
        text = json.dumps([base, sorted(self.parts.items())])
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


class MeasuredTask(GivenTask):
    """A program's own task with a loss or metrics of its own."""

    # A class apart: evaluation takes a faster path where loss and metrics are a classifier's.
    name = "measured"

    def forward(self, model: nn.Module, x: Structure) -> Any:
        """Return the model's outputs, as the known task has them."""
        return self._base.forward(model, x) if self._base else super().forward(model, x)

    def loss(self, outputs: Any, y: Structure, reduction: str = "mean") -> Tensor:
        """Return the program's loss, else the known task's, else cross-entropy."""
        if self.measures.loss is not None:
            return self.measures.mean_loss(outputs, y, reduction)
        return self._base.loss(outputs, y, reduction) if self._base else super().loss(outputs, y, reduction)

    def metrics(self, outputs: Any, y: Structure) -> dict[str, float]:
        """Return the program's metrics, else the known task's, else accuracy."""
        if self.measures.metrics:
            return self.measures.values(outputs, y)
        return self._base.metrics(outputs, y) if self._base else super().metrics(outputs, y)


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
    """What makes a run's initial model.

    Attributes:
        source: an instance, whose weights are w_0; a class or a function, called with those of the next two that it
            takes; or the name of a model.
        input_shape: shape of one example.
        num_classes: number of its labels.
    """

    source: Any
    input_shape: tuple[int, ...] = ()
    num_classes: int = 0

    def __post_init__(self) -> None:
        if isinstance(self.source, str):
            if is_own_model(self.source):
                MODELS.package(self.source)
            if not self.input_shape or not self.num_classes:
                raise ConfigError(
                    f"model = {self.source!r} is not allowed: it classifies examples of one shape; give a "
                    "torch.nn.Module of your own"
                )
        elif not isinstance(self.source, nn.Module) and not callable(self.source):
            raise ConfigError(f"model = {self.source!r} is not allowed: {WAYS}")

    @property
    def name(self) -> str:
        """What the model is called."""
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
            return copy.deepcopy(self.source).cpu()
        if isinstance(self.source, str):
            with seeded(seed):
                return build(self.source, self.input_shape, self.num_classes)
        with seeded(seed):
            module = made(self.source, self.name, self.input_shape, self.num_classes)
        return copy.deepcopy(module).cpu()  # a function may return the same one again

    def fingerprint(self, seed: int) -> str:
        """Return a hash of the model's layout and its code, of an instance also its weights; 16 hex digits."""
        module = self.initial(seed)
        arrays = {name: t.detach().cpu() for name, t in module.state_dict().items()}
        digest = hashlib.blake2b(digest_size=8)
        layout = [(name, tuple(t.shape), str(t.dtype)) for name, t in sorted(arrays.items())]
        digest.update(repr((layout, _code(type(module)))).encode())
        if isinstance(self.source, nn.Module):
            for name in sorted(arrays):
                digest.update(arrays[name].contiguous().reshape(-1).view(torch.uint8).numpy().data)
        return digest.hexdigest()


def _code(kind: type) -> str:
    """Return a class's name and its code without comments and layout; the name alone where there is no source."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(kind)))
    except (OSError, TypeError, SyntaxError):
        return kind.__qualname__
    return f"{kind.__qualname__} {ast.dump(tree)}"
