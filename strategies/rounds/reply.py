"""A client's checked reply to TRAIN, the numbers that it claims, and the reasons why a reply is left out."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, SupportsFloat

from fedappeal.protocol.foreign_text import one_line
from fedappeal.protocol.keys import Decision
from strategies.rounds.exchange.members import Member

if TYPE_CHECKING:
    from flwr.app import ArrayRecord

    Model = ArrayRecord
else:
    Model = Any  # where settings are read, Flower need not be loaded


class Refused(ValueError):
    """A reply that is left out; the message says why, for a person to read."""


class NotFinite(Refused):
    """A reply that is left out for a value that is not finite."""


class NoAnswer(Refused):
    """The SuperLink's word in place of a reply: the client gave none."""


def unexpected_error(error: Exception) -> str:
    """Return what a round's record says of an error that is no `Refused`, in one line."""
    return one_line(f"its reply cannot be used: {type(error).__name__}: {error}")


def log(value: float) -> float:
    """Return the logarithm of a number of at least 0; minus infinity for 0."""
    return math.log(value) if value else -math.inf


def claim(metrics: Mapping[str, Any], key: str, low: float = -math.inf, high: float = math.inf) -> float:
    """Return a number that a client reported, if it is there and inside its bounds.

    Raises:
        Refused: otherwise.
    """
    if (reported := metrics.get(key)) is None:
        raise Refused(f"reply has no '{key}'")
    if isinstance(reported, list):
        raise Refused(f"{key} is a list: one number is allowed")
    value = float(reported)
    if not low <= value <= high:
        raise Refused(f"{key} = {value} is not allowed: {low} to {high}")
    return value


@dataclass(frozen=True)
class Reply:
    """A checked reply to TRAIN.

    Attributes:
        member: the client.
        decision: what it decided.
        num_examples: training examples that it claims, at least 1.
        metrics: all that it reported; every number is finite.
        arrays: its model or gradient; empty where it did not join.
        records: the further ArrayRecords that were asked for, where it joined.
        counts: share of its weight that counts; less than 1 where its influence is bounded.
        sent: its model or gradient as it was sent, where its influence is bounded.
        claimed: names of the numbers that its strategy has read: claims, and no numbers of an app.
    """

    member: Member
    decision: Decision
    num_examples: float
    metrics: Mapping[str, Any]
    arrays: Model
    records: Mapping[str, Model] = field(default_factory=dict)
    counts: float = 1.0
    sent: Model | None = None
    claimed: set[str] = field(default_factory=set, compare=False)

    def claim(self, key: str, low: float = -math.inf, high: float = math.inf) -> float:
        """Return a number that the client reported, if it is there and inside its bounds.

        Raises:
            Refused: otherwise.
        """
        self.claimed.add(key)
        return claim(self.metrics, key, low, high)


def checked_weight(weight: object) -> float:
    """Return an aggregation weight, checked.

    Raises:
        Refused: it is no finite number of at least 0.
    """
    if not isinstance(weight, SupportsFloat) or not 0 <= float(weight) < math.inf:
        raise Refused(f"weight = {weight} is not allowed: a finite number, at least 0")
    return float(weight)
