"""The data of ADA-GD's experiments (appendix D).

Agents have classes of their own, and mix a part of their data.

Every agent i of n starts with a pool D_i of equal size, all of one class. It keeps the share q of it; the rest of all
pools is put together, shuffled and dealt out again in n equal parts. So q = 1 gives each agent one class alone, and
q = 0 gives all agents alike data. (The paper prints ``1 - q`` where an agent keeps q; with that formula its
"heterogeneity q = 0.9" would be nearly IID.)

The task is ``fedappeal.reproductions.adagd.task:KeptShare``, with settings of its own::

    --task fedappeal.reproductions.adagd.task:KeptShare --set kept-share.classes=5,9 --set kept-share.examples=2000

Classes go round over the agents, in a random order; the settings of partitions have no effect here. The model is
softmax regression from zero weights (Algorithm 3), unless ``model`` names another.
"""

from functools import cached_property
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import torch
from pydantic import Field, field_validator
from torch import nn

from fedappeal.core.plugins import PluginSettings
from fedappeal.protocol.draws import generator
from fedappeal.settings.config import ConfigError, Share, TaskSettings
from fedappeal.tasks.datasets.cifar10 import CIFAR10
from fedappeal.tasks.datasets.idx_images import FashionMNIST
from fedappeal.tasks.examples import Labels, Pixels, Rows
from fedappeal.tasks.labelled import PartitionedTask

SOURCES: dict[str, type[PartitionedTask]] = {"fmnist": FashionMNIST, "cifar10": CIFAR10}
"""Data sets of ten classes with equally many examples of each."""

_CLASSES = 10


def mix_pools(pools: list[Rows], keep: float, seed: int) -> list[Rows]:
    """Return the agents' examples: each keeps a share, and the rest is redealt.

    Appendix D.

    Args:
        pools: D_i, rows of the data set; all of one size m.
        keep: q; ``round(q m)`` rows are kept.
        seed: seed of the random choices.

    Returns:
        Each agent's rows: the kept ones, then its part of the rest; again m each.
    """
    shuffled = [generator(seed, "adagd-keep", client=str(i)).permutation(pool) for i, pool in enumerate(pools)]
    count = round(keep * len(pools[0]))
    rest = generator(seed, "adagd-mix").permutation(np.concatenate([pool[count:] for pool in shuffled]))
    parts = rest.reshape(len(pools), -1)
    return [np.concatenate([pool[:count], part]) for pool, part in zip(shuffled, parts, strict=True)]


class KeptShare(PartitionedTask):
    """Images of some classes: each agent keeps a share of one class and mixes the rest."""

    name = "kept-share"
    default_model = "logistic"

    class Settings(PluginSettings):
        """The task's settings."""

        data: Literal["fmnist", "cifar10"] = "fmnist"
        """the data set"""
        classes: str = ",".join(map(str, range(_CLASSES)))
        """its classes that occur, by commas; the first is label 0"""
        pixels: Literal["standardised", "unit"] = "standardised"
        """scale of the pixels: mean 0 and variance 1 over the data set, or in [0, 1]"""
        keep: Share = 0.9
        """q, the share of its own pool that an agent keeps"""
        examples: Annotated[int, Field(ge=2)] = 1000
        """examples an agent, train and test together"""

        @field_validator("classes")
        @classmethod
        def _different(cls, value: str) -> str:
            classes = [part.strip() for part in value.split(",")]
            if len(set(classes)) < max(2, len(classes)) or not set(classes) <= set(map(str, range(_CLASSES))):
                raise ValueError(f"two or more different classes of 0 to {_CLASSES - 1}, by commas")
            return ",".join(classes)

    own: Settings

    def __init__(self, settings: TaskSettings, data_dir: Path | None = None) -> None:
        """Take the settings; nothing is read yet."""
        super().__init__(settings, data_dir)
        self.whole = SOURCES[self.own.data](settings, data_dir)
        self.classes = tuple(map(int, self.own.classes.split(",")))
        self.a_class = self.whole.num_examples // _CLASSES
        self.input_shape, self.scale = self.whole.input_shape, self.whole.scale
        unit = self.own.pixels == "unit"
        self.mean, self.std = (0.0, 1.0) if unit else (self.whole.mean, self.whole.std)
        self.num_classes, self.num_examples = len(self.classes), self.a_class * len(self.classes)
        self.class_names = tuple(self.whole.class_names[c] for c in self.classes if self.whole.class_names)

    def check(self) -> None:
        """Check the settings, and that the data set can be read.

        Raises:
            ConfigError: more agents than a class has examples for, flipped labels, or no data set.
        """
        settings = self.settings
        sharing = -(-(settings.clients + settings.unseen_clients) // self.num_classes)
        if sharing * self.own.examples > self.a_class:
            raise ConfigError(
                f"clients = {settings.clients} + unseen-clients = {settings.unseen_clients} is not allowed: "
                f"{sharing} agents share a class, {self.own.examples} examples each, and it has {self.a_class}"
            )
        if settings.flip_share:
            raise ConfigError(f"flip-share = {settings.flip_share:g} is not allowed with this task: 0")
        self.check_data()

    def check_data(self) -> None:
        """Check that the whole data set can be read."""
        self.whole.check_data()

    def read(self) -> tuple[Pixels, Labels]:
        """Return the images of these classes, class by class, labelled 0, 1, ..."""
        return self._of_classes

    @cached_property
    def _of_classes(self) -> tuple[Pixels, Labels]:
        pixels, labels = self.whole.read()
        rows = np.concatenate([np.flatnonzero(labels == c) for c in self.classes])
        return pixels[rows], np.repeat(np.arange(self.num_classes), self.a_class)

    @cached_property
    def rows(self) -> list[Rows]:
        """The rows that each client holds, seen clients first.

        Raises:
            ConfigError: as `check`.
        """
        self.check()
        seed, examples, size = self.settings.resolved_data_seed, self.own.examples, self.a_class
        total = self.settings.clients + self.settings.unseen_clients
        class_of = generator(seed, "adagd-class").permutation(np.arange(total) % self.num_classes)
        order = [generator(seed, "adagd-pool", client=str(c)).permutation(size) for c in range(self.num_classes)]
        pools = []
        for i, c in enumerate(class_of):
            first = int((class_of[:i] == c).sum()) * examples
            pools.append(c * size + order[c][first : first + examples])
        return mix_pools(pools, self.own.keep, seed)

    def initial_model(self, seed: int) -> nn.Module:
        """Return zero weights for softmax regression; a network's are drawn.

        A network could not leave zero.
        """
        model = super().initial_model(seed)
        if self.settings.model in ("auto", "logistic"):
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.zero_()
        return model
