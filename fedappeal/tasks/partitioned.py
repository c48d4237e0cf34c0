"""A task whose clients share out one data set: every task that comes with fedappeal."""

from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from fedappeal.protocol.config import ConfigError, TaskSettings
from fedappeal.tasks import models, partition
from fedappeal.tasks.partition_cache import kept_rows
from fedappeal.tasks.source import Source
from fedappeal.tasks.task import ClientData, Split, Task


class PartitionedTask(Task):
    """Deals a data set out to ``clients + unseen-clients`` clients.

    The pixels stay uint8, one copy a process (processes forked after the first `load` share it); a client's
    float32 tensors are made when they are asked for and are not kept here.
    """

    def __init__(self, source: Source, settings: TaskSettings, data_dir: Path | None = None) -> None:
        """Check the settings against the data set's size; nothing is read yet.

        Raises:
            ConfigError: the data set cannot be partitioned in that way.
        """
        self.name = source.name
        self.input_shape = source.input_shape
        self.num_classes = source.num_classes
        super().__init__(settings, data_dir)
        partition.check(settings, source.num_examples, source.num_classes)
        self._source = source

    @cached_property
    def rows(self) -> list[NDArray[np.int64]]:
        """The data set's rows that each client holds, seen clients first."""
        _, labels = self._source.read(self.data_dir)
        return kept_rows(self.fingerprint, labels, lambda: partition.assign(self.settings, labels, self.num_classes))

    @cached_property
    def flipped(self) -> frozenset[int]:
        """The clients whose labels are flipped."""
        return partition.flipped(self.settings)

    def initial_model(self, seed: int) -> nn.Module:
        """Return w_0 of the model that the settings name, on the CPU."""
        name = self._source.default_model if self.settings.model == "auto" else self.settings.model
        with models.seeded(seed):
            return models.build(name, self.input_shape, self.num_classes)

    def load(self, client: int) -> ClientData:
        """Return one client's data, on the CPU: 0..clients-1 are the seen clients, then come the unseen ones.

        Raises:
            ConfigError: no such client, no data set, or a partition that cannot be drawn.
        """
        total = self.settings.clients + self.settings.unseen_clients
        if not 0 <= client < total:
            raise ConfigError(
                f"client = {client} is not allowed: 0 to {total - 1} "
                f"(clients = {self.settings.clients}, unseen-clients = {self.settings.unseen_clients})"
            )
        train, test = partition.split(self.settings, client, self.rows[client])
        flip = client in self.flipped
        return ClientData(
            train=self._examples(train, flip),
            test=self._examples(test, flip and self.settings.flip_on == "both"),
        )

    def _examples(self, rows: NDArray[np.int64], flip: bool) -> Split:
        pixels, labels = self._source.read(self.data_dir)
        x = torch.from_numpy(pixels[rows]).to(torch.float32)
        x.div_(self._source.scale).sub_(self._source.mean).div_(self._source.std)
        y = torch.from_numpy(labels[rows])
        return Split(x, self.num_classes - 1 - y if flip else y)
