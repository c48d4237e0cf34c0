"""What a task is: a model, each client's data, a loss and metrics.

Derive from `Task` for a task of your own. Importing this module loads no torch, so that a command can list and check
tasks at once.
"""

import hashlib
import json
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedappeal.protocol.config import TaskSettings
from fedappeal.protocol.plugins import Plugin, PluginSettings, parse_section

if TYPE_CHECKING:
    from torch import Tensor, nn


@dataclass(frozen=True)
class Split:
    """Labelled examples.

    Attributes:
        x: inputs, float32, shape ``(n, *input_shape)``.
        y: labels, int64, shape ``(n,)``.

    Raises:
        ValueError: another dtype, or unequal numbers of inputs and labels.
    """

    x: "Tensor"
    y: "Tensor"

    def __post_init__(self) -> None:
        if (str(self.x.dtype), str(self.y.dtype)) != ("torch.float32", "torch.int64"):
            raise ValueError(f"a Split is float32 and int64, not {self.x.dtype} and {self.y.dtype}")
        if self.y.ndim != 1 or len(self.x) != len(self.y):
            raise ValueError(f"a Split has one label an input: {tuple(self.x.shape)} and {tuple(self.y.shape)}")

    def __len__(self) -> int:
        return len(self.y)


@dataclass(frozen=True)
class ClientData:
    """One client's data: what it trains on and what it keeps for testing."""

    train: Split
    test: Split

    @cached_property
    def fingerprint(self) -> str:
        """Hash of shapes and bytes, 16 hex digits: equal data, equal fingerprint."""
        digest = hashlib.blake2b(digest_size=8)
        for tensor in (self.train.x, self.train.y, self.test.x, self.test.y):
            digest.update(str(tuple(tensor.shape)).encode())
            digest.update(tensor.detach().cpu().contiguous().numpy().data)
        return digest.hexdigest()


class Task(Plugin, ABC):
    """A model, each client's data, a loss and metrics.

    A task may have settings of its own: a nested ``class Settings(PluginSettings)`` and, for type checkers,
    ``own: Settings``. They are given under the task's name: ``mine.noise``.

    Attributes:
        settings: the run's settings of its task.
        own: the task's own settings, checked.
        data_dir: folder of the data set, or None.
        input_shape: shape of one example.
        num_classes: number of labels C; the labels are 0..C-1.
        class_names: what the labels are called, in their order; empty where they have no names.
        auto_partition: what ``partition = auto`` stands for.
    """

    own: PluginSettings
    input_shape: tuple[int, ...]
    num_classes: int
    class_names: tuple[str, ...] = ()
    auto_partition: str = "natural"

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

    def inputs(self, raw: NDArray[np.generic]) -> "Tensor":
        """Return a client's own inputs as `load` would give them, on the CPU.

        By default a task takes none; override it to take them.

        Args:
            raw: finite numbers, shape ``(n, *input_shape)``, n at least 1. Those read from image files are floats in
                [0, 1], black to white.

        Raises:
            ValueError: values that are not allowed; says which are.
        """
        raise ValueError(
            f"task {self.settings.task!r} takes no data of a client's own: it does not say how to scale them"
        )

    def loss(self, logits: "Tensor", y: "Tensor", reduction: str = "mean") -> "Tensor":
        """Return the cross-entropy in nats.

        Args:
            logits: shape ``(n, C)``.
            y: labels, shape ``(n,)``.
            reduction: ``"mean"`` or ``"sum"`` for a scalar, ``"none"`` for shape ``(n,)``.
        """
        from torch.nn import functional

        return functional.cross_entropy(logits, y, reduction=reduction)

    def metrics(self, logits: "Tensor", y: "Tensor") -> dict[str, float]:
        """Return ``accuracy`` in [0, 1] of logits ``(n, C)`` for labels ``(n,)``."""
        return {"accuracy": (logits.argmax(dim=1) == y).double().mean().item()}

    @property
    def partition(self) -> str:
        """How the data is spread over clients: the setting, or what ``auto`` stands for."""
        return self.auto_partition if self.settings.partition == "auto" else self.settings.partition

    @property
    def fingerprint(self) -> str:
        """What server and client must agree on, 16 hex digits: task, shape, classes, settings, seed."""
        # The model has a check of its own: the layout of the arrays that are sent. Other plug-ins are not the task's.
        general = set(TaskSettings.model_fields) - {"model", "plugins"}
        agreed = {field: getattr(self.settings, field) for field in general}
        agreed |= {"partition": self.partition, "own": self.own.as_config()}
        agreed |= {"input_shape": list(self.input_shape), "num_classes": self.num_classes}
        return hashlib.blake2b(json.dumps(agreed, sort_keys=True).encode(), digest_size=8).hexdigest()
