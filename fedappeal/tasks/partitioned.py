"""A task whose clients share out one data set of images."""

from abc import abstractmethod
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedappeal.tasks.arrays import Labels, Pixels, Rows
from fedappeal.tasks.examples import ClientData, Split
from fedappeal.tasks.normalisation import Normalisation
from fedappeal.tasks.partitions.assign import assign
from fedappeal.tasks.partitions.cache import kept_rows
from fedappeal.tasks.partitions.checks import AUTO_PARTITION, check, check_client
from fedappeal.tasks.partitions.split import flipped, sizes, split
from fedappeal.tasks.task import Task

if TYPE_CHECKING:
    from torch import Tensor, nn


class PartitionedTask(Task):
    """A labelled data set of images, dealt out to ``clients + unseen-clients`` clients.

    Nothing is read or partitioned before the first `load`. So a client with data of its own needs neither the data
    set nor the partitioner, and a federation of such clients may be of any size.

    The pixels stay uint8, one copy a process (processes forked after the first `load` share it); a client's
    float32 tensors are made when they are asked for and are not kept here.

    Attributes:
        input_shape: shape of one example, ``(channels, height, width)``.
        num_examples: number of examples.
        scale: the pixels' largest value; pixels are divided by it, then normalised.
        mean: mean of the scaled pixels, a fixed constant.
        std: their standard deviation, a fixed constant.
        default_model: the model for ``model = auto``.
    """

    num_examples: int
    scale: float
    mean: float
    std: float
    default_model: str
    auto_partition = AUTO_PARTITION

    @abstractmethod
    def check_data(self) -> None:
        """Check that `read` finds its files; imports no torch unless it has to download them.

        Raises:
            ConfigError: one line: a missing data set or package.
        """

    @abstractmethod
    def read(self) -> tuple[Pixels, Labels]:
        """Return pixels ``(num_examples, *input_shape)`` and labels ``(num_examples,)``; not to be changed.

        Raises:
            ConfigError: the data set cannot be read.
        """

    def check(self) -> None:
        """Check the partition and the data set.

        Raises:
            ConfigError: one line: as `check_data`, or a data set too small for the clients.
        """
        check(self.settings, self.num_examples, self.num_classes)
        self.check_data()

    @property
    def normalisation(self) -> Normalisation:
        """How pixels are scaled and normalised."""
        return Normalisation(self.scale, self.mean, self.std)

    @cached_property
    def rows(self) -> list[Rows]:
        """The data set's rows that each client holds, seen clients first."""
        _, labels = self.read()
        return kept_rows(self.fingerprint, labels, lambda: assign(self.settings, labels, self.num_classes))

    @cached_property
    def flipped(self) -> frozenset[int]:
        """The clients whose labels are flipped."""
        return flipped(self.settings)

    def initial_model(self, seed: int) -> "nn.Module":
        """Return w_0 of the model that the settings name, on the CPU."""
        from fedappeal.tasks import models

        name = self.default_model if self.settings.model == "auto" else self.settings.model
        with models.seeded(seed):
            return models.build(name, self.input_shape, self.num_classes)

    def load(self, client: int) -> ClientData:
        """Return one client's data, on the CPU.

        Args:
            client: 0..clients-1 are the seen clients, then come the unseen ones.

        Raises:
            ConfigError: no such client, no data set, a data set too small for the clients, or a partition that cannot
                be drawn.
        """
        check_client(self.settings, client)
        train, test = split(self.settings, client, self.rows[client])
        flip = client in self.flipped
        return ClientData(
            train=self._examples(train, flip),
            test=self._examples(test, flip and self.settings.flip_on == "both"),
        )

    def counts(self, client: int) -> tuple[int, int]:
        """Return how many training and test examples a client has."""
        check_client(self.settings, client)
        return sizes(self.settings, len(self.rows[client]))

    def inputs(self, raw: NDArray[np.generic]) -> "Tensor":
        """Return a client's own pixels as `load` gives the data set's, scaled and normalised alike.

        Args:
            raw: shape ``(n, *input_shape)``; integers from 0 to the data set's largest pixel, or floats in [0, 1].

        Raises:
            ValueError: pixels out of range.
        """
        return self.normalisation.inputs(raw, self.settings.task)

    def _examples(self, rows: Rows, flip: bool) -> Split:
        import torch

        pixels, labels = self.read()
        x = self.normalisation.apply(pixels[rows])
        y = torch.from_numpy(labels[rows])
        return Split(x, self.num_classes - 1 - y if flip else y)
