"""Owners of client-ids: an id belongs to the key which first used it.

A key is one client. A key that lasts (the operator registered it, or the client keeps it in its state folder) holds
its id in all runs of a federation; the key of a connection, which ends with its process, holds one for a run.
"""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol

from fedappeal.protocol.proof import KEY_ID, key_id
from strategies.rounds.reply import Refused

NEXT = ""
"""In place of a fingerprint: the next key to use the id gets it."""
NONE: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True)
class ProvenKey:
    """A key of which a node has proven that it holds it.

    Attributes:
        fingerprint: SHA-256, in hex.
        lasting: whether it outlives the node's process.
    """

    fingerprint: str
    lasting: bool

    @property
    def key_id(self) -> str:
        """The client-id that belongs to it."""
        return key_id(self.fingerprint)


class Owners:
    """The owner of each client-id, by the fingerprint of its key.

    It is the beginning of a fingerprint where the operator named it, or `NEXT`.

    Attributes:
        lasting: by client-id, in all runs.
        passing: by client-id, in one run.
        changed: whether an id has another owner than at the beginning.
    """

    def __init__(self, lasting: Mapping[str, str] = NONE, passing: Mapping[str, str] = NONE) -> None:
        self.lasting = dict(lasting)
        self.passing = dict(passing)
        self.changed = False

    @contextmanager
    def open(self) -> "Iterator[Owners]":
        """Yield the owners of one run, for as long as its process runs."""
        yield self

    def check(self, client_id: str, key: ProvenKey) -> None:
        """Check that a key may use a client-id.

        Raises:
            Refused: one line that names the id, and what the operator can do.
        """
        owner = self.lasting.get(client_id, self.passing.get(client_id))
        allow = f"the operator can change that: fedappeal federation release {client_id} --to {key.key_id}"
        if owner:
            if not key.fingerprint.startswith(owner):
                raise Refused(
                    f"client-id '{client_id}' belongs to another key ({key_id(owner)}) than this node's "
                    f"({key.key_id}); {allow}"
                )
            return
        if owner is None and client_id.startswith(KEY_ID) and client_id != key.key_id:
            raise Refused(f"client-id '{client_id}' is another key's than this node's ({key.key_id}); {allow}")
        used = (i for ids in (self.lasting, self.passing) for i, owner in ids.items() if owner == key.fingerprint)
        if (owned_id := next(used, client_id)) != client_id:
            raise Refused(f"this node's key ({key.key_id}) is client '{owned_id}', not '{client_id}'; {allow}")

    def claim(self, client_id: str, key: ProvenKey) -> None:
        """Let a key use a client-id, from now on it alone; raises as `check` does."""
        self.check(client_id, key)
        owners = self.lasting if key.lasting or client_id in self.lasting else self.passing
        if owners.get(client_id) != key.fingerprint:
            owners[client_id] = key.fingerprint
            self.changed = True

    def release(self, client_id: str, to: str = NEXT) -> None:
        """Let an id pass to another key: the next one, or the one whose fingerprint begins so."""
        self.lasting[client_id] = to
        self.passing.pop(client_id, None)
        self.changed = True


class Identities(Protocol):
    """Where a federation's owners are kept."""

    def open(self) -> AbstractContextManager[Owners]:
        """Read them for a while, alone; what is changed meanwhile is kept."""
