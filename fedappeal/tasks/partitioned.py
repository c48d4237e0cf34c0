"""A task whose clients share out one data set of images."""

from abc import abstractmethod
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedappeal.tasks.arrays import Labels, Pixels, Rows
from fedappeal.tasks.labelled import LabelledTask
from fedappeal.tasks.normalisation import Normalisation
from fedappeal.tasks.partitions.assign import assign
from fedappeal.tasks.partitions.cache import kept_rows
from fedappeal.tasks.partitions.checks import AUTO_PARTITION, check, check_client
from fedappeal.tasks.partitions.split import sizes

if TYPE_CHECKING:
    from torch import Tensor


class PartitionedTask(LabelledTask):
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
    """

    num_examples: int
    scale: float
    mean: float
    std: float
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

    def held_by(self, client: int) -> tuple[Pixels, Labels, Rows]:
        """Return all pixels and labels, and which of their rows a client holds."""
        return *self.read(), self.rows[client]

    def scaled(self, x: NDArray[np.generic]) -> "Tensor":
        """Return pixels scaled and normalised."""
        return self.normalisation.apply(x)

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
