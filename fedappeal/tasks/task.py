"""What a task is: a model, each client's data, a loss and metrics.

Derive from `Task` for a task of your own. Importing this module loads no torch, so that a command can list and check
tasks at once.
"""

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from fedappeal.core.plugins import Plugin, PluginSettings, parse_section
from fedappeal.protocol.metric import ACCURACY, Metric
from fedappeal.settings.config import TaskSettings
from fedappeal.tasks.examples import ClientData, Features, Labels, Pixels, Rows, Split, Structure

if TYPE_CHECKING:
    from torch import Tensor, nn

__all__ = ["ClientData", "Features", "Labels", "Normalisation", "Pixels", "Rows", "Split", "Structure", "Task"]

Constant = float | tuple[float, ...]
"""One number, or one for each channel (the first axis of an example)."""


@dataclass(frozen=True)
class Normalisation:
    """The formula ``(raw / scale - mean) / std``.

    Attributes:
        scale: the largest value of raw integers; raw floats lie in [0, 1] and are not divided.
        mean: mean of the scaled inputs.
        std: their standard deviation.
    """

    scale: float
    mean: Constant
    std: Constant

    def apply(self, raw: NDArray[np.generic], scale: float | None = None) -> "Tensor":
        """Return inputs scaled and normalised: float32, the shape of ``raw``.

        Args:
            raw: shape ``(n, *input_shape)``.
            scale: what they are divided by; None: the formula's.
        """
        import torch

        x = torch.from_numpy(raw.astype(np.float32))
        return x.div_(self.scale if scale is None else scale).sub_(_spread(self.mean, x)).div_(_spread(self.std, x))

    def inputs(self, raw: NDArray[np.generic], task: str) -> "Tensor":
        """Return raw inputs scaled and normalised, after a look at their range.

        Args:
            raw: shape ``(n, *input_shape)``; integers from 0 to ``scale``, or floats in [0, 1].
            task: name of the task, for the message.

        Raises:
            ValueError: values out of range.
        """
        scale = self.scale if raw.dtype.kind in "iu" else 1.0
        for value in (raw.min(), raw.max()):
            if not 0 <= value <= scale:
                raise ValueError(
                    f"a pixel is {value:g}: for task {task!r} they are integers from 0 to {self.scale:g}, "
                    f"or floats from 0 to 1"
                )
        return self.apply(raw, scale)


def _spread(constant: Constant, x: "Tensor") -> "float | Tensor":
    if not isinstance(constant, tuple):
        return constant
    return x.new_tensor(constant).view(1, -1, *(1 for _ in x.shape[2:]))


class Task(Plugin, ABC):
    """A model, each client's data, a loss and metrics.

    A task may have settings of its own: a nested ``class Settings(PluginSettings)`` and, for type checkers,
    ``own: Settings``. They are given under the task's name: ``mine.noise``.

    Attributes:
        settings: the run's settings of its task.
        own: the task's own settings, checked.
        data_dir: folder of the data set, or None.
        input_shape: shape of one example; empty where the inputs are a structure of tensors, or vary.
        input_dtype: their dtype, by torch's name; a trained model is exported for it.
        num_classes: number of labels C, which are 0..C-1; 0 where labels are no classes.
        classes_are_declared: whether ``num_classes`` is what the task says, not what its labels show.
        class_names: what the labels are called, in their order; empty where they have no names.
        feature_names: columns of a client's own table that are the inputs, in their order; empty: the owner's choice.
        categories: of those features that are no numbers: their values. Each is an input, 1 in rows that have it,
            else 0; an empty cell is allowed where ``""`` is a value.
        standardises_tables: whether its clients' data are a table's columns, each client's standardised.
        auto_partition: what ``partition = auto`` stands for.
        edition: of its clients' data under the same settings; count it up where they change, so that no run continues
            with other data than it began with.
        metric: the task's primary metric: tables show it; a requirement ``metric`` and FedALIGN's
            ``match-on = error`` compare it.
        share: what of the model travels where the run's setting ``share`` is ``auto`` (`fedappeal.tasks.share`).
        evaluation_batch: examples a forward pass of an evaluation; bounds memory, does not change the result.
        other_metrics: names of further numbers that `metrics` returns and clients report.
        other_bounds: the least and the largest value of those that have bounds.
        loss_is_mean: whether the loss of a client is the mean of that of its examples, so that pieces add up; a class
            that writes a `loss` has to say so again. Else it sees all outputs of a client at once, 1 GiB at most.
        metrics_are_means: the same of `metrics`.
        metrics_by_name: metrics one by one, in place of `metrics`: callables ``(outputs, y) -> number``, or objects
            with torchmetrics' ``update``, ``compute`` and ``reset``, which take in all outputs piece by piece.
    """

    own: PluginSettings
    input_shape: tuple[int, ...] = ()
    input_dtype: str = "float32"
    num_classes: int = 0
    metric: Metric = ACCURACY
    other_metrics: tuple[str, ...] = ()
    other_bounds: Mapping[str, tuple[float, float]] = {}
    loss_is_mean: bool = True
    metrics_are_means: bool = True
    metrics_by_name: Mapping[str, Any] = {}
    share: str = "all"
    class_names: tuple[str, ...] = ()
    classes_are_declared: bool = True
    evaluation_batch: int = 4096
    feature_names: tuple[str, ...] = ()
    categories: Mapping[str, Sequence[str]] = {}
    standardises_tables: bool = False
    auto_partition: str = "natural"
    edition: int = 1

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        for method, flag in (("loss", "loss_is_mean"), ("metrics", "metrics_are_means")):
            written, said = (next(base for base in cls.__mro__ if name in base.__dict__) for name in (method, flag))
            if cls.__mro__.index(written) < cls.__mro__.index(said):
                setattr(cls, flag, False)

    def __init__(self, settings: TaskSettings, data_dir: Path | None = None) -> None:
        """Take the settings; no data is read before `load`.

        Raises:
            ConfigError: an own setting that is unknown or not allowed.
        """
        self.settings = settings
        self.data_dir = data_dir
        self.own = parse_section(type(self), settings.section(self.name))

    def check(self) -> None:
        """Check that the task can be loaded, before anything is started.

        Downloads the data set where it has to.

        Raises:
            ConfigError: one line: what is missing, or does not fit.
        """

    @abstractmethod
    def initial_model(self, seed: int) -> "nn.Module":
        """Return w_0 on the CPU, a pure function of the seed.

        Build it inside ``with fedappeal.tasks.models.seeded(seed):``, which leaves torch's global generator alone.
        """

    @abstractmethod
    def load(self, client: int) -> ClientData:
        """Return one client's data, on the CPU.

        Args:
            client: 0..clients-1 are the seen clients, then come the unseen ones.

        Raises:
            ConfigError: there is no such client, or the data set cannot be read.
        """

    def counts(self, client: int) -> tuple[int, int] | None:
        """Return a client's numbers of training and test examples, without reading.

        None where they are not known. Where they are known, a simulation in which few clients train each round loads
        a client when it is first needed. A class that overrides `load` has to override this as well.
        """
        return None

    def data_bytes(self, client: int) -> int | None:
        """Return the estimated bytes of a client's data, without reading.

        None where they are not known.
        """
        return None

    def inputs(self, raw: NDArray[np.generic]) -> Structure:
        """Return a client's own inputs as `load` would give them, on the CPU.

        By default a task takes none; override it to take them.

        Args:
            raw: finite numbers, shape ``(n, *input_shape)``, n at least 1; of any shape ``(n, ...)`` where
                ``input_shape`` is empty. Those read from image files are floats in [0, 1], black to white; those of
                a table are integers where all of them are written as whole numbers, else floats.

        Raises:
            ValueError: values that are not allowed; says which are.
        """
        raise ValueError(
            f"task {self.settings.task!r} takes no data of a client's own: it does not say how to scale them"
        )

    def batches_in(
        self, path: Path, features: Sequence[str], label: str, size: int
    ) -> "Iterator[tuple[Structure, Structure | None]] | None":
        """Return a file's inputs and labels to predict.

        None if the task reads no files of its own.

        Args:
            path: the file or folder.
            features: columns of the inputs; empty: as the task names them.
            label: column of the labels; empty: there are none.
            size: most examples of a batch.
        """
        return None

    def answers(self, outputs: Any, x: Structure) -> list[tuple[str, float]] | None:
        """Return a name and its probability for each example.

        None if the outputs are logits of the classes, or values.
        """
        return None

    def forward(self, model: "nn.Module", x: Structure) -> Any:
        """Return a model's outputs: ``model(x)``; of a dict ``model(**x)``, of a tuple or list ``model(*x)``.

        Override it where a model is called in another way, or returns more than loss and metrics need.
        """
        if isinstance(x, Mapping):
            return model(**x)
        return model(*x) if isinstance(x, list | tuple) else model(x)

    def loss(self, outputs: Any, y: Structure, reduction: str = "mean") -> "Tensor":
        """Return the cross-entropy in nats.

        Args:
            outputs: what `forward` returned; here logits of shape ``(n, C)``.
            y: labels; here of shape ``(n,)``.
            reduction: ``"mean"``, ``"sum"``: n times that; here ``"none"`` too: ``(n,)``.
        """
        from torch.nn import functional

        return functional.cross_entropy(outputs, cast("Tensor", y), reduction=reduction)

    def metrics(self, outputs: Any, y: Structure) -> dict[str, float]:
        """Return the metrics over all examples: here ``accuracy`` in [0, 1].

        NaN where one cannot be computed.
        """
        # On the host: an accelerator may have no float64.
        return {"accuracy": (outputs.argmax(dim=1) == y).cpu().double().mean().item()}

    def is_plain(self) -> bool:
        """Whether a model is called and measured as this class says: classification by cross-entropy."""
        kind = type(self)
        as_here = kind.forward is Task.forward and kind.loss is Task.loss and kind.metrics is Task.metrics
        return as_here and not self.metrics_by_name

    @property
    def normalisation(self) -> Normalisation | None:
        """The formula by which `inputs` scales, for the model card.

        None where there is none.
        """
        return None

    @property
    def partition(self) -> str:
        """The data's partition over clients, with ``auto`` resolved."""
        return self.auto_partition if self.settings.partition == "auto" else self.settings.partition

    @property
    def fingerprint(self) -> str:
        """The hash on which server and client must agree, 16 hex digits.

        Of task, shape, classes, settings, seeds.
        """
        # The model has a check of its own: the layout of the arrays that are sent. Other plug-ins are not the task's.
        general = set(TaskSettings.model_fields) - {"model", "share", "plugins", "data_seed", "scale"}
        agreed = {field: getattr(self.settings, field) for field in general}
        agreed |= {"partition": self.partition, "own": self.own.as_config()}
        agreed |= {"input_shape": list(self.input_shape), "num_classes": self.num_classes}
        agreed |= {"categories": {k: [*v] for k, v in self.categories.items()}} if self.categories else {}
        agreed |= {"edition": self.edition} if self.edition > 1 else {}
        agreed |= {"scale": "standard"} if self.settings.scale == "standard" else {}
        agreed |= {"data_seed": self.settings.data_seed} if self.settings.data_seed >= 0 else {}
        if self.metric != ACCURACY:
            agreed["metric"] = [self.metric.name, self.metric.higher_is_better, *self.other_metrics]
        return hashlib.blake2b(json.dumps(agreed, sort_keys=True).encode(), digest_size=8).hexdigest()
