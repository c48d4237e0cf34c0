"""A volunteer with images of its own, and the server that asks it: what each question costs is counted."""

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

import numpy as np
from flwr.app import RecordDict
from numpy.typing import NDArray

from client.participant import Participant
from fedappeal.core.local_rule import StoredRecord
from fedappeal.protocol import keys
from fedappeal.protocol.packing import Arrays
from fedappeal.settings.config import RunConfig, Scalar, scalar
from fedappeal.tasks.datasets.digits import Digits, _digits
from fedappeal.tasks.examples import Split
from tests.node import Node, metrics_of

CLASSES = 10
PIXELS = 64
EXAMPLES = 60
"""Images of the volunteer: 36 to train on and 24 to test with."""
LABELS = (16, 2, 11, 1, 8, 0, 9, 3, 4, 6)
"""How many of each digit it holds."""

Vector = NDArray[np.float64]
T = TypeVar("T")


class Found(NamedTuple, Generic[T]):
    """What an attack works out, and how many models it sent for it."""

    value: T
    models: int


def write_images(folder: Path) -> Path:
    """Write the volunteer's images, and return the file."""
    pixels, labels = _digits()
    rows = np.concatenate([np.flatnonzero(labels == digit)[:count] for digit, count in enumerate(LABELS)])
    file = folder / "images.npz"
    np.savez(file, x=pixels[rows], y=labels[rows])
    return file


def switches(options: str) -> dict[str, Scalar]:
    """Return the node settings behind options of `fedappeal client`."""
    found: dict[str, Scalar] = {}
    words = options.split()
    for at, word in enumerate(words):
        if word.startswith("--"):
            value = words[at + 1] if words[at + 1 :] and not words[at + 1].startswith("--") else None
            name = word.removeprefix("--")
            found[name.removeprefix("no-")] = scalar(value) if value else not name.startswith("no-")
    return found


def other_images() -> Vector:
    """Return images of the same kind that the server has: none of the volunteer's."""
    pixels = _digits()[0][1000:]
    return ((pixels / Digits.scale - Digits.mean) / Digits.std).reshape(len(pixels), -1)


class Victim:
    """A volunteer as a hostile server sees it.

    The server knows the run's settings, and what comes back. Only tests look at `participant`.

    Attributes:
        examples: how many it trains on, which it tells in the roll call.
        asked: messages so far, but for roll calls.
    """

    def __init__(self, config: RunConfig, file: Path, options: str = "") -> None:
        """Call the roll.

        Args:
            config: the run's settings, which the server chooses.
            file: the volunteer's images.
            options: its owner's, as `fedappeal client` has them.
        """
        self.node = Node(config, partition_id=-1, data=str(file), client_id="anna", **switches(options))
        # Only here: the client's secret is drawn by chance, and a figure that is compared with a page must not be.
        self.participant.store.write("noise-key", StoredRecord({"key": "known to this test"}))
        self.asked = 0
        self._round = 0
        self.examples = int(self.node.metrics("query")[keys.NUM_EXAMPLES])  # type: ignore[call-overload]

    def zero(self) -> Arrays:
        """Return a model of the run's shape with zeros alone."""
        return {name: np.zeros_like(array) for name, array in self.node.initial.items()}

    def biased(self, bias: Vector) -> Arrays:
        """Return a model whose logits are the same for every image."""
        return self.zero() | {"output.bias": np.asarray(bias, np.float32)}

    def train(self, model: Arrays, *, mandatory: bool = True, **told: Scalar) -> RecordDict:
        """Return the answer to a TRAIN of another round."""
        self.asked += 1
        self._round += 1
        return self.node("train", model, told, server_round=self._round, mandatory=int(mandatory))

    def evaluate(self, model: Arrays, split: str = keys.TEST_SPLIT) -> Mapping[str, float]:
        """Return what an EVALUATE of another round tells."""
        self.asked += 1
        self._round += 1
        return metrics_of(self.node("evaluate", model, split=split, server_round=self._round))  # type: ignore[return-value]

    def update(self, sent: Arrays, reply: RecordDict, scale: float = 1.0) -> Arrays:
        """Return the model that was sent, minus the one that came back, over a scale, in float64."""
        back = self.node.layout.unpack(reply.array_records[keys.ARRAYS])
        return {name: (sent[name].astype(np.float64) - back[name]) / scale for name in sent}

    def gradient(
        self, model: Arrays, batch_size: int = 10**6, *, mandatory: bool = True, rate: float = 1.0
    ) -> Arrays:
        """Return the mean gradient over a batch, by default of all examples: of one step, divided by its size."""
        asked = {"batch-size": batch_size, "local-steps": 1, "learning-rate": rate}
        return self.update(model, self.train(model, mandatory=mandatory, **asked), rate)

    # -- for tests alone -----------------------------------------------------------------------------

    @cached_property
    def participant(self) -> Participant:
        """The volunteer itself."""
        return self.node.participants.of(self.node.context)

    @property
    def rho(self) -> float:
        """Its requirement."""
        return self.participant.requirement("k").rho

    def _examples(self, split: str) -> Split:
        data = self.participant.learner.data
        return data.train if split == keys.TRAIN_SPLIT else data.test

    def images(self, split: str = keys.TRAIN_SPLIT) -> Vector:
        """Its images as they are trained on, shape ``(n, 64)``."""
        data = self._examples(split)
        return data.x.numpy().reshape(len(data), -1).astype(np.float64)  # type: ignore[union-attr]

    def histogram(self, split: str = keys.TRAIN_SPLIT) -> list[int]:
        """How many of its images bear each label."""
        data = self._examples(split)
        counts: list[int] = np.bincount(data.y.numpy(), minlength=CLASSES).tolist()  # type: ignore[union-attr]
        return counts
