"""Tasks whose data comes client by client: by user, or drawn for each client."""

import math
from abc import abstractmethod
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedappeal.settings.config import ConfigError, TaskSettings
from fedappeal.tasks.arrays import Features, Labels
from fedappeal.tasks.examples import ClientData, Split
from fedappeal.tasks.partitions.checks import check_client
from fedappeal.tasks.partitions.split import flipped, sizes, split
from fedappeal.tasks.task import Task

if TYPE_CHECKING:
    from torch import Tensor, nn


class NaturalTask(Task):
    """Data that comes client by client; each client splits its own into train and test.

    Some clients' labels are flipped.

    Attributes:
        default_model: the model for ``model = auto``.
        hidden: hidden units of its multi-layer perceptron.
        dropout: its rate after the first hidden layer; None: no such layer.
    """

    default_model: str
    hidden: tuple[int, ...]
    dropout: float | None
    auto_partition = "natural"

    def __init__(self, settings: TaskSettings, data_dir: Path | None = None) -> None:
        """Take the settings; nothing is read yet.

        Raises:
            ConfigError: another partition than natural, or own settings that do not fit.
        """
        super().__init__(settings, data_dir)
        if self.partition != "natural":
            raise ConfigError(
                f"partition = {settings.partition!r} is not allowed for task = {settings.task!r}: "
                f"its data comes client by client (natural, auto)"
            )

    @abstractmethod
    def read(self) -> list[tuple[Features, Labels]]:
        """Return each client's inputs, float32 ``(n, *input_shape)``, and labels ``(n,)``, seen clients first.

        Raises:
            ConfigError: the data cannot be read, or is not enough.
        """

    def size_of(self, client: int) -> int | None:
        """Return how many examples a client has, where `read_client` reads its own alone; None: it reads all."""
        return None

    def read_client(self, client: int) -> tuple[Features, Labels]:
        """Return one client's inputs and labels, as `read` does."""
        return self.clients[client]

    @cached_property
    def clients(self) -> list[tuple[Features, Labels]]:
        """Inputs and labels of each client, as `read` returned them."""
        return self.read()

    @cached_property
    def flipped(self) -> frozenset[int]:
        """The clients whose labels are flipped."""
        return flipped(self.settings)

    def initial_model(self, seed: int) -> "nn.Module":
        """Return w_0 of the model that the settings name, on the CPU."""
        from fedappeal.tasks import models

        name = self.default_model if self.settings.model == "auto" else self.settings.model
        with models.seeded(seed):
            if name == "mlp":
                return models.mlp(math.prod(self.input_shape), self.num_classes, self.hidden, self.dropout)
            return models.build(name, self.input_shape, self.num_classes)

    def load(self, client: int) -> ClientData:
        """Return one client's data, on the CPU.

        Args:
            client: 0..clients-1 are the seen clients, then come the unseen ones.

        Raises:
            ConfigError: no such client, or the data cannot be read.
        """
        check_client(self.settings, client)
        x, y = self.read_client(client)
        train, test = split(self.settings, client, np.arange(len(y)))
        flip = client in self.flipped
        on_test = flip and self.settings.flip_on == "both"
        return ClientData(
            train=self._examples(x[train], y[train], flip), test=self._examples(x[test], y[test], on_test)
        )

    def counts(self, client: int) -> tuple[int, int] | None:
        """Return how many training and test examples a client has; None: only reading all clients' tells."""
        check_client(self.settings, client)
        size = self.size_of(client)
        return None if size is None else sizes(self.settings, size)

    def inputs(self, raw: NDArray[np.generic]) -> "Tensor":
        """Return a client's own inputs unchanged: word vectors' means, or features."""
        import torch

        return torch.from_numpy(raw.astype(np.float32))

    def _examples(self, x: Features, y: Labels, flip: bool) -> Split:
        import torch

        return Split(torch.from_numpy(x), torch.from_numpy(self.num_classes - 1 - y if flip else y))
