"""How large a reply may be: known before it comes, from the model that was sent."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flwr.app import ArrayRecord

_OBJECTS, _BYTES = 64, 1 << 20
_TIMES_THE_MODEL = 2
"""A record besides the model may be of its values in float64."""
_OF_AN_ARRAY = 1024
"""Bytes for the name, the shape and the ids of one array."""
_SMALLEST_CHUNK = 1 << 20


@dataclass(frozen=True)
class Allowance:
    """What one reply may hold; by default numbers and short texts, no model.

    Attributes:
        objects: parts that it may consist of, as Flower takes a message apart.
        bytes: their contents together.
    """

    objects: int = _OBJECTS
    bytes: int = _BYTES

    @classmethod
    def of_models(cls, model: "ArrayRecord", records: int = 1) -> "Allowance":
        """Return what a reply may hold that carries records of the size of a model.

        Args:
            model: the model that was sent.
            records: the ArrayRecords of the reply.
        """
        values = _TIMES_THE_MODEL * sum(len(array.data) for array in model.values())
        return cls(
            objects=_OBJECTS + records * (1 + 2 * len(model) + values // _SMALLEST_CHUNK),
            bytes=_BYTES + records * (values + _OF_AN_ARRAY * len(model)),
        )
