"""What a task is: a model, each client's data and how it is shaped, a loss and metrics.

Derive from `Task` for a task of your own. Importing this module loads no torch, so that a command can list and check
tasks at once.
"""

import hashlib
import json
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Union, cast

import numpy as np
from numpy.typing import NDArray

from fedappeal.core.plugins import Plugin, PluginSettings, parse_section
from fedappeal.protocol.metric import ACCURACY, Metric
from fedappeal.settings.config import TaskSettings

if TYPE_CHECKING:
    import torch
    from torch import Tensor


Pixels = NDArray[np.uint8]
Features = NDArray[np.float32]
Labels = NDArray[np.int64]
Rows = NDArray[np.int64]
"""Rows of a data set: indices of its examples."""
Structure = Union["Tensor", Mapping[str, "Structure"], Sequence["Structure"]]
"""A tensor, or a dict, tuple or list of structures."""
_WITH_PARTS = (dict, list, tuple, Mapping)


def tensors_of(structure: Structure) -> "Iterator[tuple[str, Tensor]]":
    """Yield a structure's tensors with their paths: ``/input_ids``; ``""`` for a lone one."""
    if isinstance(structure, Mapping):
        for key, part in structure.items():
            yield from ((f"/{key}{path}", tensor) for path, tensor in tensors_of(part))
    elif isinstance(structure, list | tuple):
        for number, part in enumerate(structure):
            yield from ((f"/{number}{path}", tensor) for path, tensor in tensors_of(part))
    else:
        yield "", structure  # type: ignore[misc]


def described(structure: Structure) -> str:
    """Return type and shape of one example of a structure: ``float32 (1, 28, 28)``."""
    parts = [
        f"{path + ' ' if path else ''}{str(t.dtype).removeprefix('torch.')} {tuple(t.shape[1:])}"
        for path, t in tensors_of(structure)
    ]
    return ", ".join(parts)


def map_tensors(change: "Callable[[Tensor], Tensor]", structure: Structure) -> Structure:
    """Return a structure of the same form, with each tensor changed."""
    lone = only_tensor(structure)
    return change(lone) if lone is not None else map_parts(lambda parts: change(parts[0]), [structure])


def map_parts(merge: "Callable[[Sequence[Tensor]], Tensor]", structures: Sequence[Structure]) -> Structure:
    """Return a structure whose tensors are made of the tensors at the same place of several.

    Args:
        merge: makes one tensor of those at one place.
        structures: of the same form, at least one.

    Raises:
        ValueError: structures of different form.
    """
    first = structures[0]
    if isinstance(first, Mapping):
        if any(not isinstance(other, Mapping) or other.keys() != first.keys() for other in structures):
            raise ValueError("examples of different form: their dicts have different keys")
        return {key: map_parts(merge, [other[key] for other in structures]) for key in first}  # type: ignore[call-overload, index]
    if isinstance(first, list | tuple):
        if any(not isinstance(other, list | tuple) or len(other) != len(first) for other in structures):
            raise ValueError("examples of different form: their tuples have different lengths")
        return tuple(map_parts(merge, [other[i] for other in structures]) for i in range(len(first)))  # type: ignore[index]
    if any(isinstance(other, Mapping | list | tuple) for other in structures):
        raise ValueError("examples of different form: a tensor in place of a dict or tuple")
    return merge(structures)  # type: ignore[arg-type]


def take(structure: Structure, rows: "Tensor | slice") -> Structure:
    """Return the given rows of each tensor."""
    if isinstance(rows, slice):
        return map_tensors(lambda tensor: tensor[rows], structure)
    flat = rows.flatten()
    # Faster than indexing: for images of several rows of indices, a third of the time.
    return map_tensors(lambda t: t.index_select(0, flat).view(*rows.shape, *t.shape[1:]), structure)


def only_tensor(structure: Structure) -> "Tensor | None":
    """Return a structure's tensor, where it is a lone one."""
    return None if isinstance(structure, _WITH_PARTS) else structure  # type: ignore[return-value]


@dataclass(frozen=True)
class Split:
    """Labelled examples.

    Attributes:
        x: inputs: a tensor ``(n, *input_shape)`` of any dtype, or a structure of tensors ``(n, ...)``.
        y: labels, in the same way; class labels are int64 ``(n,)``.

    Raises:
        ValueError: unequal numbers of examples, or no tensor.
    """

    x: Structure
    y: Structure

    def __post_init__(self) -> None:
        shapes = {
            f"{name}{path}": tuple(t.shape) for name in ("x", "y") for path, t in tensors_of(getattr(self, name))
        }
        if any(not shape for shape in shapes.values()) or len({shape[0] for shape in shapes.values()}) != 1:
            described = ", ".join(f"{name} {shape}" for name, shape in shapes.items()) or "nothing"
            raise ValueError(f"a Split has tensors with one row an example: {described}")

    def __len__(self) -> int:
        return int(next(tensors_of(self.y))[1].shape[0])

    @property
    def device(self) -> "torch.device":
        """Where the examples are."""
        return next(tensors_of(self.x))[1].device

    @classmethod
    def of_rows(cls, x: Structure, y: Structure, rows: "Tensor | slice") -> "Split":
        """Return the given rows of inputs and labels that were checked before; minibatches are made so."""
        split = object.__new__(cls)
        split.__dict__.update(x=take(x, rows), y=take(y, rows))
        return split

    def take(self, rows: "Tensor | slice") -> "Split":
        """Return the examples of the given rows."""
        return self.of_rows(self.x, self.y, rows)

    def to(self, device: "torch.device") -> "Split":
        """Return the examples on a device."""
        return Split(map_tensors(lambda t: t.to(device), self.x), map_tensors(lambda t: t.to(device), self.y))


class OneClientsData(Protocol):
    """One client's data, here or to be loaded: what it trains on, and what it keeps for testing."""

    @property
    def train(self) -> Split:
        """What it trains on."""

    @property
    def test(self) -> Split:
        """What it keeps for testing."""

    @property
    def held_out(self) -> Split | None:
        """What of its training data it never trains on, to judge models by; None: it judges by what it trains on."""

    @property
    def counts(self) -> tuple[int, int]:
        """How many examples it trains on, and how many it tests with."""

    @property
    def fingerprint(self) -> str:
        """Hash of forms, shapes and bytes, 16 hex digits: equal data, equal fingerprint."""


@dataclass(frozen=True)
class ClientData:
    """One client's data that are here; see `OneClientsData`."""

    train: Split
    test: Split
    held_out: Split | None = None

    @cached_property
    def counts(self) -> tuple[int, int]:
        """See `OneClientsData`."""
        return len(self.train), len(self.test)

    @cached_property
    def fingerprint(self) -> str:
        """Hash of forms, shapes and bytes, 16 hex digits: equal data, equal fingerprint."""
        digest = hashlib.blake2b(digest_size=8)
        for structure in (part for split in self.splits for part in (split.x, split.y)):
            for path, tensor in tensors_of(structure):
                usual = str(tensor.dtype) in ("torch.float32", "torch.int64")
                digest.update(f"{path}{'' if usual else tensor.dtype}{tuple(tensor.shape)}".encode())
                digest.update(bytes_of(tensor))
        return digest.hexdigest()

    def to(self, device: "torch.device") -> "ClientData":
        """Return the data on a device."""
        return ClientData(*(split.to(device) for split in self.splits))

    @property
    def splits(self) -> list[Split]:
        """What it trains on, what it tests with, and what it holds out, if anything."""
        return [self.train, self.test, *([] if self.held_out is None else [self.held_out])]


def bytes_of(tensor: "Tensor") -> memoryview:
    """Return a tensor's values as bytes, row after row."""
    import torch

    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().data  # NumPy knows no bfloat16


FEWEST = 20
"""Training examples below which a client holds none out, and judges models by its training loss."""
ONE_IN = 3
"""Number of training examples of which one is held out."""
_PURPOSE = b"fedappeal-held-out"


def with_held_out(data: ClientData) -> ClientData:
    """Return a client's data with a third of its training examples held out; few examples stay as they are.

    By this third the client judges models, and it never trains on it. Which examples these are follows from the
    examples alone: the same in every run and for every seed. Each input is hashed; inputs go to the third in the
    order of their hashes while they fit. Equal inputs have one hash and stay together, so that no held-out example
    was trained on under another row.
    """
    import torch

    rows = held_out_rows(data.train)
    if not rows:
        return data
    held = torch.zeros(len(data.train), dtype=torch.bool)
    held[rows] = True
    device = data.train.device
    trained, taken = (mask.nonzero().flatten().to(device) for mask in (~held, held))
    return ClientData(data.train.take(trained), data.test, data.train.take(taken))


def held_out_rows(train: Split) -> list[int]:
    """Return the rows that are held out, in ascending order: at most a third.

    None are held out of fewer than `FEWEST`, nor where too many inputs are equal.
    """
    count = len(train)
    if count < FEWEST:
        return []
    digests = [hashlib.blake2b(_PURPOSE, digest_size=8) for _ in range(count)]
    for path, tensor in tensors_of(train.x):
        values = bytes_of(tensor)
        size = len(values) // count
        for row, digest in enumerate(digests):
            digest.update(path.encode())
            digest.update(values[row * size : (row + 1) * size])
    equal: dict[bytes, list[int]] = defaultdict(list)
    for row, digest in enumerate(digests):
        equal[digest.digest()].append(row)
    held: list[int] = []
    inputs = 0
    for _, rows in sorted(equal.items()):
        if len(held) + len(rows) <= count // ONE_IN:
            held += rows
            inputs += 1
    varied = 2 * inputs <= len(equal)  # else what is left to train on has hardly any input but one
    return sorted(held) if varied and len(held) >= FEWEST // ONE_IN else []


if TYPE_CHECKING:
    from torch import Tensor, nn


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
        class_names: what the labels are called, in their order; empty where they have no names.
        feature_names: columns of a client's own table that are the inputs, in their order; empty: the owner's choice.
        auto_partition: what ``partition = auto`` stands for.
        edition: of its clients' data under the same settings; count it up where they change, so that no run continues
            with other data than it began with.
        metric: the task's primary metric: tables show it; a requirement ``metric`` and FedALIGN's
            ``match-on = error`` compare it.
        share: what of the model travels where the run's setting ``share`` is ``auto`` (`fedappeal.tasks.share`).
        evaluation_batch: examples a forward pass of an evaluation; bounds memory, does not change the result.
        other_metrics: names of further numbers that `metrics` returns and clients report.
    """

    own: PluginSettings
    input_shape: tuple[int, ...] = ()
    input_dtype: str = "float32"
    num_classes: int = 0
    metric: Metric = ACCURACY
    other_metrics: tuple[str, ...] = ()
    share: str = "all"
    class_names: tuple[str, ...] = ()
    evaluation_batch: int = 4096
    feature_names: tuple[str, ...] = ()
    auto_partition: str = "natural"
    edition: int = 1

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
        """Return how many training and test examples `load` gives a client, without reading them; None: not known.

        Where it is known, a simulation in which few clients train each round loads a client when it is first needed.
        A class that overrides `load` has to override this as well.
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
        """Return inputs and labels of a file to predict, where the task reads files of its own; None: it does not.

        Args:
            path: the file or folder.
            features: columns of the inputs; empty: as the task names them.
            label: column of the labels; empty: there are none.
            size: most examples of a batch.
        """
        return None

    def answers(self, outputs: Any, x: Structure) -> list[tuple[str, float]] | None:
        """Return a name and its probability for each example; None: outputs are logits of the classes, or values."""
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
            reduction: ``"mean"`` over the examples, ``"sum"``: n times that mean; here ``"none"`` too: ``(n,)``.
        """
        from torch.nn import functional

        return functional.cross_entropy(outputs, cast("Tensor", y), reduction=reduction)

    def metrics(self, outputs: Any, y: Structure) -> dict[str, float]:
        """Return the task's metrics as means over the examples: here ``accuracy`` in [0, 1]."""
        return {"accuracy": (outputs.argmax(dim=1) == y).double().mean().item()}

    @classmethod
    def is_plain(cls) -> bool:
        """Whether a model is called and measured as this class says: classification by cross-entropy."""
        return cls.forward is Task.forward and cls.loss is Task.loss and cls.metrics is Task.metrics

    @property
    def normalisation(self) -> Normalisation | None:
        """The formula by which `inputs` scales, for the model's card; None: there is none."""
        return None

    @property
    def partition(self) -> str:
        """How the data is spread over clients: the setting, or what ``auto`` stands for."""
        return self.auto_partition if self.settings.partition == "auto" else self.settings.partition

    @property
    def fingerprint(self) -> str:
        """What server and client must agree on, 16 hex digits: task, shape, classes, settings, seed."""
        # The model has a check of its own: the layout of the arrays that are sent. Other plug-ins are not the task's.
        general = set(TaskSettings.model_fields) - {"model", "share", "plugins"}
        agreed = {field: getattr(self.settings, field) for field in general}
        agreed |= {"partition": self.partition, "own": self.own.as_config()}
        agreed |= {"input_shape": list(self.input_shape), "num_classes": self.num_classes}
        agreed |= {"edition": self.edition} if self.edition > 1 else {}
        if self.metric != ACCURACY:
            agreed["metric"] = [self.metric.name, self.metric.higher_is_better, *self.other_metrics]
        return hashlib.blake2b(json.dumps(agreed, sort_keys=True).encode(), digest_size=8).hexdigest()
