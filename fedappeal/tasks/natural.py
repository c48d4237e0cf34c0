"""Tasks whose data comes client by client: by user, or drawn for each client."""

from abc import abstractmethod
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedappeal.settings.config import ConfigError, TaskSettings
from fedappeal.tasks.arrays import Features, Labels, Rows
from fedappeal.tasks.labelled import LabelledTask
from fedappeal.tasks.partitions.checks import check_client
from fedappeal.tasks.partitions.split import sizes

if TYPE_CHECKING:
    from torch import Tensor


class NaturalTask(LabelledTask):
    """Data that comes client by client; each client splits its own into train and test."""

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

    def held_by(self, client: int) -> tuple[Features, Labels, Rows]:
        """Return one client's inputs and labels, and all their rows."""
        x, y = self.read_client(client)
        return x, y, np.arange(len(y))

    def scaled(self, x: NDArray[np.generic]) -> "Tensor":
        """Return inputs unchanged: word vectors' means, or features."""
        import torch

        return torch.from_numpy(x)

    def counts(self, client: int) -> tuple[int, int] | None:
        """Return how many training and test examples a client has; None: only reading all clients' tells."""
        check_client(self.settings, client)
        size = self.size_of(client)
        return None if size is None else sizes(self.settings, size)

    def inputs(self, raw: NDArray[np.generic]) -> "Tensor":
        """Return a client's own inputs unchanged: word vectors' means, or features."""
        import torch

        return torch.from_numpy(raw.astype(np.float32))
