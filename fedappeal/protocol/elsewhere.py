"""A model that stayed where it was trained: what a server knows of it, and who can add it up there."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from flwr.app import ArrayRecord

Form = Mapping[str, tuple[tuple[int, ...], str]]
"""Shape and dtype of a model's arrays, by name."""
Sums = Mapping[str, NDArray[np.floating]]
"""A weighted sum of models: one vector an array, by name."""


@dataclass(frozen=True)
class Part:
    """One summand of a weighted sum: a model that is elsewhere, times its weight."""

    model: "Elsewhere"
    weight: float


class Holder(Protocol):
    """Has models where they were trained."""

    def fold(self, parts: Sequence[Part]) -> list[Sums]:
        """Return partial sums of weighted models, which add up to the whole, in an order that does not change."""


class Kept:
    """A model's place; where the last reference to it goes, the model may be forgotten.

    Attributes:
        key: the message that the model answers, and the record's name.
    """

    def __init__(self, key: tuple[str, str]) -> None:
        self.key = key


@dataclass(frozen=True)
class Elsewhere:
    """What is known here of a model that is elsewhere; the program that has it is the server's own.

    Attributes:
        holder: adds such models up.
        kept: the model's place.
        form: of its arrays.
        size: bytes of its content, as `fedappeal.protocol.packing.content_size` counts them.
        trouble: why it is left out; empty: it fits the model that was sent.
        not_finite: whether that is for a value that is not finite.
    """

    holder: Holder
    kept: Kept
    form: Form
    size: int
    trouble: str
    not_finite: bool


def record_elsewhere(model: Elsewhere) -> "ArrayRecord":
    """Return a record without arrays that stands for a model elsewhere."""
    from flwr.app import ArrayRecord  # where settings are read, Flower need not be loaded

    record = ArrayRecord()
    record.__dict__["elsewhere"] = model
    return record


def elsewhere(record: object) -> Elsewhere | None:
    """Return what is known of the model that a record stands for; None: the record holds its model."""
    model = getattr(record, "elsewhere", None)
    return model if isinstance(model, Elsewhere) else None
