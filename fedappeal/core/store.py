"""A client's memory as algorithms see it: named records, which last from round to round."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

import numpy as np

from fedappeal.protocol.packing import Arrays
from fedappeal.settings.config import Scalar

if TYPE_CHECKING:
    from flwr.app import ArrayRecord, ConfigRecord


@dataclass(frozen=True)
class Record:
    """One remembered thing: scalars by name, and arrays by name."""

    values: Mapping[str, Scalar]
    arrays: Arrays = field(default_factory=dict)

    @cached_property
    def as_flowers(self) -> "tuple[ConfigRecord, ArrayRecord]":
        """The same as Flower's records; not to be changed, as many simulated clients may remember one thing."""
        from flwr.app import Array, ArrayRecord, ConfigRecord

        arrays = {k: Array(np.asarray(a, order="C")) for k, a in self.arrays.items()}
        return ConfigRecord(dict(self.values)), ArrayRecord(arrays)


class Store(Protocol):
    """Where a client keeps its records.

    Attributes:
        durable: whether records outlive the process.
    """

    durable: bool

    def read(self, name: str) -> Record | None:
        """Return the record of that name, or None."""

    def write(self, name: str, record: Record) -> None:
        """Replace the record of that name, all or nothing."""


def remember_round(store: Store, name: str, server_round: int, before: Arrays, after: Arrays) -> None:
    """Store arrays as they were before and after a round, both or neither, so that it can be run again."""
    arrays = {f"before/{key}": array for key, array in before.items()}
    arrays |= {f"after/{key}": array for key, array in after.items()}
    store.write(name, Record({"round": server_round}, arrays))


def recall_before(store: Store, name: str, server_round: int) -> Arrays:
    """Return arrays that `remember_round` stored, as they were before a round; empty: none are stored."""
    if (record := store.read(name)) is None:
        return {}
    moment = "after/" if int(record.values["round"]) < server_round else "before/"
    return {key.removeprefix(moment): array for key, array in record.arrays.items() if key.startswith(moment)}
