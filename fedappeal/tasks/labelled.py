"""Tasks on labelled rows: images that clients share out, or data that comes client by client."""

import math
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedappeal.settings.config import ConfigError, TaskSettings
from fedappeal.tasks.files.data_files import DataFiles, faults_of
from fedappeal.tasks.partitions import assign
from fedappeal.tasks.task import ClientData, Features, Labels, Normalisation, Pixels, Rows, Split, Task

if TYPE_CHECKING:
    from torch import Tensor, nn


LOADED = 4
"""Copies of a client's examples while they are loaded, split and held out."""


class TaskOfRows(Task):
    """A task whose clients hold rows of a data set, each with a label; some clients' labels are flipped."""

    @abstractmethod
    def held_by(self, client: int) -> tuple[NDArray[Any], Labels, Rows]:
        """Return arrays of inputs and of labels, and which of their rows a client holds."""

    @abstractmethod
    def examples(self, x: NDArray[Any], labels: Labels, /) -> Split:
        """Return inputs as the model takes them, with their labels."""

    @cached_property
    def flipped(self) -> frozenset[int]:
        """The clients whose labels are flipped."""
        return assign.flipped_clients(self.settings)

    def load(self, client: int) -> ClientData:
        """Return one client's data, on the CPU.

        Args:
            client: 0..clients-1 are the seen clients, then come the unseen ones.

        Raises:
            ConfigError: no such client, the data cannot be read, or they are not enough for the clients.
        """
        assign.check_client(self.settings, client)
        x, y, rows = self.held_by(client)
        flip = client in self.flipped
        flips = (flip, flip and self.settings.flip_on == "both")
        made = [
            self.examples(x[part], self.num_classes - 1 - y[part] if flipped else y[part])
            for part, flipped in zip(assign.split_rows(self.settings, client, rows), flips, strict=True)
        ]
        return ClientData(*made)


class LabelledTask(TaskOfRows):
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
    def scaled(self, x: NDArray[np.generic]) -> "Tensor":
        """Return inputs as the model takes them."""

    def examples(self, x: NDArray[Any], labels: Labels, /) -> Split:
        """Return scaled inputs with their labels."""
        import torch

        return Split(self.scaled(x), torch.from_numpy(labels))

    def size_of(self, client: int) -> int | None:
        """Return a client's number of examples; None if only reading all clients tells."""
        return None

    def counts(self, client: int) -> tuple[int, int] | None:
        """Return a client's numbers of training and test examples.

        None if only reading all clients tells.
        """
        assign.check_client(self.settings, client)
        size = self.size_of(client)
        return None if size is None else assign.sizes(self.settings, size)

    def initial_model(self, seed: int) -> "nn.Module":
        """Return w_0 of the model that the settings name, on the CPU."""
        from fedappeal.tasks import models

        name = self.default_model if self.settings.model == "auto" else self.settings.model
        with models.seeded(seed):
            if name == "mlp":
                return models.mlp(math.prod(self.input_shape), self.num_classes, self.hidden, self.dropout)
            return models.build(name, self.input_shape, self.num_classes)


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
    auto_partition = assign.AUTO_PARTITION

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
        assign.check(self.settings, self.num_examples, self.num_classes)
        self.check_data()

    @property
    def normalisation(self) -> Normalisation:
        """The scaling and normalisation of pixels."""
        return Normalisation(self.scale, self.mean, self.std)

    @cached_property
    def rows(self) -> list[Rows]:
        """The data set's rows that each client holds, seen clients first."""
        _, labels = self.read()
        return assign.kept_rows(
            self.fingerprint, labels, lambda: assign.assign(self.settings, labels, self.num_classes)
        )

    def held_by(self, client: int) -> tuple[Pixels, Labels, Rows]:
        """Return all pixels and labels, and which of their rows a client holds."""
        return *self.read(), self.rows[client]

    def scaled(self, x: NDArray[np.generic]) -> "Tensor":
        """Return pixels scaled and normalised."""
        return self.normalisation.apply(x)

    def size_of(self, client: int) -> int:
        """Return a client's number of examples."""
        return len(self.rows[client])

    def data_bytes(self, client: int) -> int:
        """Return the estimated bytes of `load`.

        The data set's pixels, and a client's share of them as floats.
        """
        pixels = self.num_examples * math.prod(self.input_shape)
        return pixels + LOADED * 4 * pixels // assign.total_clients(self.settings)

    def inputs(self, raw: NDArray[np.generic]) -> "Tensor":
        """Return a client's own pixels, scaled and normalised like the data set's.

        Args:
            raw: shape ``(n, *input_shape)``; integers from 0 to the data set's largest pixel, or floats in [0, 1].

        Raises:
            ValueError: pixels out of range.
        """
        return self.normalisation.inputs(raw, self.settings.task)


@dataclass(frozen=True)
class ImagePart:
    """One part of a data set in files: what its files' names begin with, and its number of images."""

    prefix: str
    count: int


class ImageFiles(PartitionedTask):
    """A data set of images in files, one part after the other.

    Attributes:
        files: where its files are.
        parts: what they hold. A part must hold exactly as many images as it says: clients that share out files of
            different lengths would share out different data.
    """

    files: DataFiles
    parts: tuple[ImagePart, ...]
    scale = 255.0

    @classmethod
    @abstractmethod
    def read_part(cls, folder: Path, part: ImagePart) -> tuple[Pixels, Labels]:
        """Return a part's images ``(count, *input_shape)`` and labels ``(count,)``.

        Raises:
            ValueError, OSError: one line that names the file; ConfigError: it has disappeared.
        """

    def check_data(self) -> None:
        """Find the files, or download them."""
        self.files.find_or_download(self.data_dir)

    def read(self) -> tuple[Pixels, Labels]:
        """Return all images and labels; read once a process."""
        return _all_parts(type(self), self._folder)

    @cached_property
    def _folder(self) -> Path:
        """The folder of the files from which each client's data are read."""
        return self.files.find_or_download(self.data_dir).resolve()


@cache
def _all_parts(kind: type[ImageFiles], folder: Path) -> tuple[Pixels, Labels]:
    ends = np.cumsum([part.count for part in kind.parts]).tolist()
    pixels, labels = np.empty((ends[-1], *kind.input_shape), np.uint8), np.empty(ends[-1], np.int64)
    with faults_of(f"task = {kind.files.task!r} cannot read its data"):
        for part, end in zip(kind.parts, ends, strict=True):
            rows = slice(end - part.count, end)
            pixels[rows], labels[rows] = kind.read_part(folder, part)
    return pixels, labels


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

    def read_client(self, client: int) -> tuple[Features, Labels]:
        """Return one client's inputs and labels."""
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
        return self.inputs(x)

    def inputs(self, raw: NDArray[np.generic]) -> "Tensor":
        """Return a client's own inputs unchanged: word vectors' means, or features."""
        import torch

        return torch.from_numpy(raw.astype(np.float32))


class ByPerson(NaturalTask):
    """Data that says whose each example is; clients are drawn among the people with ``min-examples`` of them.

    Attributes:
        people: what clients are called, for messages.
        things: what their examples are called.
    """

    people: str
    things: str
    default_model = "logistic"

    @abstractmethod
    def examples_by_person(self) -> Mapping[str, tuple[Features, Labels]]:
        """Return each person's inputs, float32 ``(n, *input_shape)``, and labels ``(n,)``; read once a process.

        Raises:
            ConfigError: the data cannot be read.
        """

    def check(self) -> None:
        """Read the data, and draw the clients.

        Raises:
            ConfigError: the data cannot be read, or too few people have enough examples.
        """
        self._people_of_run()

    def read(self) -> list[tuple[Features, Labels]]:
        """Return the drawn clients' inputs and labels."""
        by_person = self.examples_by_person()
        return [by_person[person] for person in self._people_of_run()]

    def _people_of_run(self) -> list[str]:
        counts = {person: len(labels) for person, (_, labels) in self.examples_by_person().items()}
        return assign.draw_users(self.settings, counts, self.things, self.people)
