"""A client's memory: its id, and of each run requirement, decisions, personal part."""

import json
import math
import uuid
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from client.settings import NodeSettings
from client.state.store import changing_records
from fedappeal.core.local_rule import Store, StoredRecord
from fedappeal.core.policy import Past
from fedappeal.protocol.keys import Decision, is_run_key
from fedappeal.settings.config import ConfigError, Scalar

PERSONAL, OWN = "personal", "own"
"""Arrays that a client keeps of a run: those that do not travel; and those of its own last model, to blend with."""
DEPARTURE = "departure-"
"""Prefix, before the run-key, of the record by which an owner leaves a run for good."""


def client_identity(node: NodeSettings, store: Store) -> str:
    """Return the client-id: the owner's (or the key's), else the state's, made on first use.

    A simulated client's follows from its number, and is not kept.
    """
    if node.client_id:
        return node.client_id
    if node.partition_id >= 0 and not store.durable:
        return client_of_partition(node.partition_id)
    with changing_records(store):
        if (record := store.read("identity")) is not None:
            return str(record.values["client-id"])
        place = node.partition_id
        fresh = client_of_partition(place) if place >= 0 else f"client-{uuid.uuid4().hex[:12]}"
        store.write("identity", StoredRecord({"client-id": fresh}))
        return fresh


def client_of_partition(number: int) -> str:
    """Return the client-id of the client that plays a task's client of a number."""
    return f"client-{number:04d}"


@lru_cache(maxsize=1024)
def _run_record(values: tuple[tuple[str, Scalar], ...]) -> StoredRecord:
    """Return the record of a run; clients that remember the same share it."""
    return StoredRecord(dict(values))


_ABSENT: list[Any] = [0, 0, math.nan, math.nan, (), 0]
"""In place of what a round that an earlier version kept does not say."""


def _past(line: list[Any]) -> Past:
    """Return a round that was kept as a list of numbers."""
    server_round, decision, loss, held_out, wishes, mandatory = [*line, *_ABSENT[len(line) :]]
    held_out = held_out if math.isfinite(held_out) else math.nan  # one NaN for all: equal pasts compare as equal
    wished = tuple(Decision(wish) for wish in wishes)
    return Past(server_round, Decision(decision), float(loss), held_out, wished, bool(mandatory))


def _payment(server_round: int, model: str) -> str:
    """Return how a round that was paid for is remembered."""
    return f"{server_round}:{model[:32]}"


class RunMemory:
    """A client's memory of one run, and a `Store` of further records that are forgotten with it.

    Args:
        store: where it is kept.
        run_key: which run.
    """

    def __init__(self, store: Store, run_key: str) -> None:
        """Begin.

        Raises:
            ConfigError: for a key that is no part of a file's name.
        """
        if not is_run_key(run_key):
            raise ConfigError(
                f"run-key = {run_key[:80]!r} is not allowed: up to 64 letters, digits, '-', '_' and '.'"
            )
        self.durable, self._store, self._run_key = store.durable, store, run_key

    def read(self, name: str) -> StoredRecord | None:
        """Return the run's record of that name, or None."""
        return self._store.read(f"{name}-{self._run_key}")

    def write(self, name: str, record: StoredRecord) -> None:
        """Replace it."""
        self._store.write(f"{name}-{self._run_key}", record)

    @property
    def requirement(self) -> str:
        """The name under which this run's requirement is stored.

        Empty where there is none yet.
        """
        return str(self._values()["requirement"])

    @requirement.setter
    def requirement(self, key: str) -> None:
        self._remember("requirement", key)

    def has_left(self, server_round: int) -> bool:
        """Whether the client left for good before the given round, or its owner has it leave."""
        if self._store.durable and self._store.read(DEPARTURE + self._run_key) is not None:
            return True
        return 0 < int(self._values()["left-round"]) < server_round

    def leave(self, server_round: int) -> None:
        """Remember that the client left for good in the given round."""
        self._remember("left-round", server_round)

    def accepts(self, server_round: int, model: str, goodwill: int) -> bool:
        """Whether the client's goodwill lets it join a round on request.

        Args:
            server_round: the round.
            model: content hash of the model that was sent; a round that was paid for is not paid for again.
            goodwill: rounds that it gives in this run; -1: all.
        """
        if goodwill <= 0:
            return goodwill < 0
        spent = self._spent()
        return len(spent) < goodwill or _payment(server_round, model) in spent

    def pay(self, server_round: int, model: str) -> None:
        """Remember a round that the client joins on request, before it trains."""
        with changing_records(self._store):
            spent = self._spent()
            if (payment := _payment(server_round, model)) not in spent:
                self._remember("goodwill-spent", " ".join((*spent, payment)))

    @property
    def goodwill_spent(self) -> int:
        """Rounds that the client has joined on request although the model did not meet its requirement."""
        return len(self._spent())

    def _spent(self) -> list[str]:
        return str(self._values()["goodwill-spent"]).split()

    def kept(self, what: str, before: int) -> tuple[int, Mapping[str, NDArray[np.generic]]]:
        """Return a round and the arrays kept after it, the latest from before a round.

        0 and nothing where there are none. ``what``: `PERSONAL` or `OWN`.
        """
        for name in self._names_of(what):
            record = self._store.read(name)
            if record is not None and int(record.values["round"]) < before:
                return int(record.values["round"]), record.arrays
        return 0, {}

    def keep(self, what: str, server_round: int, arrays: Mapping[str, NDArray[np.generic]]) -> None:
        """Remember arrays after a round, and keep those from before that round: it may be repeated."""
        now, previous = self._names_of(what)
        with changing_records(self._store):
            record = self._store.read(now)
            if record is not None and int(record.values["round"]) < server_round:
                self._store.write(previous, record)
            self._store.write(now, StoredRecord({"round": server_round}, arrays))

    def _names_of(self, what: str) -> tuple[str, str]:
        return f"{what}-{self._run_key}", f"{what}-{self._run_key}-before"

    def past(self, server_round: int) -> tuple[Past, ...]:
        """Return the rounds before one, oldest first; later ones are about to be run again."""
        record = self.read("past")
        lines = json.loads(str(record.values["rounds"])) if record else []
        past = map(_past, lines)
        return tuple(earlier for earlier in past if earlier.server_round < server_round)

    def keep_past(self, past: tuple[Past, ...]) -> None:
        """Remember rounds."""
        lines = [
            [p.server_round, int(p.decision), p.loss, p.held_out, [int(wish) for wish in p.wishes], int(p.mandatory)]
            for p in past
        ]
        self.write("past", StoredRecord({"rounds": json.dumps(lines)}))

    def _values(self) -> dict[str, Scalar]:
        record = self.read("run")
        return {"requirement": "", "left-round": 0, "goodwill-spent": "", **(record.values if record else {})}

    def _remember(self, key: str, value: Scalar) -> None:
        with changing_records(self._store):
            values = self._values()
            if values[key] != value:
                self.write("run", _run_record(tuple({**values, key: value}.items())))
