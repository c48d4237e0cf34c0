"""A task on labelled rows: each client splits its own into train and test, and some clients' labels are flipped."""

import math
from abc import abstractmethod
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedappeal.tasks.arrays import Labels, Rows
from fedappeal.tasks.examples import ClientData, Split
from fedappeal.tasks.partitions.checks import check_client
from fedappeal.tasks.partitions.split import flipped, split
from fedappeal.tasks.task import Task

if TYPE_CHECKING:
    from torch import Tensor, nn


class LabelledTask(Task):
    """A classification task whose clients hold labelled rows of arrays.

    Attributes:
        default_model: the model for ``model = auto``.
        hidden: hidden units of its multi-layer perceptron.
        dropout: its rate after the first hidden layer; None: no such layer.
    """

    default_model: str
    hidden: tuple[int, ...] = (64, 30)
    dropout: float | None = 0.2

    @abstractmethod
    def held_by(self, client: int) -> tuple[NDArray[np.generic], Labels, Rows]:
        """Return arrays of inputs and of labels, and which of their rows a client holds."""

    @abstractmethod
    def scaled(self, x: NDArray[np.generic]) -> "Tensor":
        """Return inputs as the model takes them."""

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
            ConfigError: no such client, the data cannot be read, or they are not enough for the clients.
        """
        check_client(self.settings, client)
        x, y, rows = self.held_by(client)
        train, test = split(self.settings, client, rows)
        flip = client in self.flipped
        on_test = flip and self.settings.flip_on == "both"
        return ClientData(self._split(x, y, train, flip), self._split(x, y, test, on_test))

    def _split(self, x: NDArray[np.generic], y: Labels, rows: Rows, flip: bool) -> Split:
        import torch

        labels = torch.from_numpy(y[rows])
        return Split(self.scaled(x[rows]), self.num_classes - 1 - labels if flip else labels)
