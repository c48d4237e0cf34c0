"""The clients of a federation, by their stable ids, and the order in which a round asks them.

Node ids are random and change when a client comes back without a key; a client-id stays.

Each round has one random order of the sorted client-ids, a pure function of (seed, round). The first wave asks
the first m clients of that order; while fewer than m have joined or may still join, each next wave asks twice as
many as the last.
The first m joiners *in that order* count, so the outcome does not depend on which reply comes first.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from fedappeal.protocol.draws import generator
from fedappeal.protocol.keys import SEEN

_FAILURES = 2
_MOST = 30


class Probation:
    """Clients on probation: from the second failure on, until enough good turns have followed.

    A client owes 4 good turns after its second failure, 8 after the third, and so on. So one that fails every other
    time is not waited for either.
    """

    def __init__(self) -> None:
        self._failures: dict[str, int] = {}
        self._owed: dict[str, int] = {}

    def __contains__(self, client_id: str) -> bool:
        """Whether a client is on probation."""
        return self._failures.get(client_id, 0) >= _FAILURES and self._owed[client_id] > 0

    def clients(self) -> set[str]:
        """Return the ids of the clients on probation."""
        return {client for client in self._owed if client in self}

    def fail(self, client_id: str) -> None:
        """Count a client's failure."""
        failures = self._failures[client_id] = self._failures.get(client_id, 0) + 1
        self._owed[client_id] = 2 ** min(failures, _MOST)

    def succeed(self, client_id: str) -> None:
        """Count a good turn of a client."""
        if self._owed.get(client_id):
            self._owed[client_id] -= 1

    def state(self) -> dict[str, Any]:
        """Return all of it as lists of scalars, for a checkpoint."""
        return {
            "probation-clients": list(self._failures),
            "probation-failures": list(self._failures.values()),
            "probation-owed": [self._owed[client] for client in self._failures],
        }

    @classmethod
    def restored(cls, state: Mapping[str, Any]) -> "Probation":
        """Return what `state` recorded; of a run without it, the beginning."""
        probation = cls()
        if clients := state.get("probation-clients"):
            probation._failures = dict(zip(clients, state["probation-failures"], strict=True))
            probation._owed = dict(zip(clients, state["probation-owed"], strict=True))
        return probation


@dataclass(frozen=True)
class Member:
    """One client.

    Attributes:
        client_id: stable id.
        node_id: where messages to it go.
        role: seen (trains and evaluates) or unseen (evaluates only).
        priority: whether it asks to be served with priority.
        num_examples: training examples it holds, at least 1.
        left: whether it says that it has left the run for good.
        version: of its fedappeal; empty where it does not say.
        key_id: the client-id that belongs to the key which it has proven; empty in a simulation.
    """

    client_id: str
    node_id: int
    role: str = SEEN
    priority: bool = False
    num_examples: int = 1
    left: bool = False
    version: str = ""
    key_id: str = ""

    @classmethod
    def bare(cls, node_id: int) -> "Member":
        """Return the member behind a node that is known by its id alone."""
        return cls(str(node_id), node_id)

    @property
    def enrolled(self) -> bool:
        """Whether the client answered the roll call."""
        return self.client_id != str(self.node_id)


class Members:
    """The clients of a run: which are online, and which have left.

    Attributes:
        left: client-ids that have left the run for good.
        unusable: clients whose answers could not be used, repeatedly.
        bare: whether nodes are known by their ids alone, so that one that is gone comes back as another.
    """

    def __init__(self, left: Iterable[str] = (), unusable: Probation | None = None) -> None:
        self._by_client: dict[str, Member] = {}
        self._online: set[int] = set()
        self._in_order: list[Member] | None = None
        self.left: set[str] = set(left)
        self.unusable = unusable or Probation()
        self.bare = False

    def enrol(self, member: Member) -> Member | None:
        """Add a client, or give it a new node id; return the member that it replaces."""
        previous = self._by_client.get(member.client_id)
        self._by_client[member.client_id] = member
        self._in_order = None
        self._online.add(member.node_id)
        return previous

    def enrol_bare(self, node_ids: Iterable[int]) -> None:
        """Enrol nodes by their ids, without a roll call; they alone are online."""
        self.bare = True
        nodes = list(node_ids)
        for node in nodes:
            if self.of_node(node) is None:
                self.enrol(Member.bare(node))
        self.set_online(nodes)

    def set_online(self, node_ids: Iterable[int]) -> None:
        """Set which nodes are connected now."""
        self._online = set(node_ids)

    def online(self, role: str | None = None) -> list[Member]:
        """Return the connected clients (of one role), sorted by client-id."""
        online = self._online
        return [m for m in self._by_id() if m.node_id in online and (role is None or m.role == role)]

    def of_role(self, role: str) -> list[str]:
        """Return the client-ids of a role, connected or not, sorted."""
        return [m.client_id for m in self._by_id() if m.role == role]

    def _by_id(self) -> list[Member]:
        """Return all clients, sorted by client-id."""
        if self._in_order is None:
            self._in_order = sorted(self._by_client.values(), key=lambda m: m.client_id)
        return self._in_order

    def remaining(self) -> list[Member]:
        """Return the seen clients that have not left, connected or not, sorted by client-id."""
        return [m for m in self._by_id() if m.role == SEEN and m.client_id not in self.left]

    def available(self) -> list[Member]:
        """Return the connected seen clients that have not left, sorted by client-id."""
        return [member for member in self.online(SEEN) if member.client_id not in self.left]

    def population(self, remembered: Iterable[str] = ()) -> set[str]:
        """Return the ids of the seen clients that have not left, connected or not.

        Args:
            remembered: clients that a strategy remembers; after a resume some of them may not have come back yet.
        """
        if self.bare:  # node ids are random: a node that is gone comes back as another
            return {member.client_id for member in self.available()}
        return {member.client_id for member in self.remaining()} | (set(remembered) - self.left)

    def awaited(self) -> set[str]:
        """Return the ids of the seen clients that have not left and whose answers are of use."""
        return self.population() - self.unusable.clients()

    def of_client(self, client_id: str) -> Member | None:
        """Return the client with an id, or None."""
        return self._by_client.get(client_id)

    def of_node(self, node_id: int) -> Member | None:
        """Return the client behind a node id, or None."""
        return next((m for m in self._by_client.values() if m.node_id == node_id), None)

    def __len__(self) -> int:
        return len(self._by_client)


T = TypeVar("T")


def sampling_order(seed: int, server_round: int, client_ids: Sequence[str]) -> list[str]:
    """Return the order in which a round asks its clients: a seeded permutation."""
    ids = sorted(client_ids)
    order = generator(seed, "sampling", server_round=server_round).permutation(len(ids))
    return list(map(ids.__getitem__, order.tolist()))


def waves(order: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """Cut an order into waves of ``size``, ``2 size``, ``4 size``, ... clients."""
    start = 0
    while start < len(order):
        yield order[start : start + size]
        start, size = start + size, 2 * size
