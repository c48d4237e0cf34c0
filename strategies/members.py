"""Who takes part in a federation: the clients that answered the roll call, by their stable ids.

Node ids are random and change when a client comes back without a key; a client-id stays.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from fedappeal.protocol.keys import SEEN


@dataclass(frozen=True)
class Member:
    """One client.

    Attributes:
        client_id: stable id.
        node_id: where messages to it go.
        role: seen (trains and evaluates) or unseen (evaluates only).
        priority: whether it is served with priority (FedALIGN).
        num_examples: training examples it holds, at least 1.
        left: whether it says that it has left the run for good.
    """

    client_id: str
    node_id: int
    role: str = SEEN
    priority: bool = False
    num_examples: int = 1
    left: bool = False


class Members:
    """The clients of a run, and which of them are online."""

    def __init__(self) -> None:
        self._by_client: dict[str, Member] = {}
        self._online: set[int] = set()

    def enrol(self, member: Member) -> Member | None:
        """Add a client, or give a known one its new node id; return what it replaces, if anything."""
        previous = self._by_client.get(member.client_id)
        self._by_client[member.client_id] = member
        self._online.add(member.node_id)
        return previous

    def set_online(self, node_ids: Iterable[int]) -> None:
        """Set which nodes are connected now."""
        self._online = set(node_ids)

    def online(self, role: str | None = None) -> list[Member]:
        """Return the connected clients (of one role), sorted by client-id."""
        return sorted(
            (m for m in self._by_client.values() if m.node_id in self._online and (role is None or m.role == role)),
            key=lambda m: m.client_id,
        )

    def of_role(self, role: str) -> list[str]:
        """Return the client-ids of a role, connected or not, sorted."""
        return sorted(m.client_id for m in self._by_client.values() if m.role == role)

    def of_client(self, client_id: str) -> Member | None:
        """Return the client with an id, or None."""
        return self._by_client.get(client_id)

    def of_node(self, node_id: int) -> Member | None:
        """Return the client behind a node id, or None."""
        return next((m for m in self._by_client.values() if m.node_id == node_id), None)

    def __len__(self) -> int:
        return len(self._by_client)
