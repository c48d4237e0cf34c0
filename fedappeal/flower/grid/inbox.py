"""A run's Grid in every runtime: where replies come from, and which nodes are connected."""

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from flwr.app import Message
from flwr.serverapp import Grid
from flwr.supercore.run import Run

from fedappeal.flower.processes import replace_name
from fedappeal.protocol.packing import Allowance

__all__ = ["Inbox", "PlainInbox", "Run", "inbox_of"]

_HTTP_GRID = "flwr.superlink.grid.http_grid"


class Inbox(Protocol):
    """A source of replies.

    Attributes:
        remote: whether they come from other machines, so that time and size say something about a client.
    """

    remote: bool

    def pull(self, ids: Iterable[str], allowance: Allowance, unread: Sequence[str] = ()) -> list[Message]:
        """Return the replies that have come, without waiting.

        Args:
            ids: of the messages whose replies are wanted.
            allowance: what each of these replies may hold.
            unread: of messages to which only the fact of an answer matters: the reply may come without its content.
        """


class PlainInbox:
    """The replies of this machine's own clients, taken unchecked."""

    remote = False

    def __init__(self, grid: Grid) -> None:
        self._grid = grid

    def pull(self, ids: Iterable[str], allowance: Allowance, unread: Sequence[str] = ()) -> list[Message]:
        """Return the replies that have come."""
        return list(self._grid.pull_messages([*ids, *unread]))


def inbox_of(grid: Grid) -> Inbox:
    """Return the inbox of a grid; a SuperLink's without trust in clients' objects.

    A SuperLink's grid pushes a message's objects one by one from then on.
    """
    # A simulation never loads Flower's HTTP grid, and a ServerApp that is given one has loaded it.
    deployed = sys.modules.get(_HTTP_GRID)
    if deployed is not None and isinstance(grid, deployed.HttpGrid):
        from fedappeal.flower.grid.http_inbox import HttpInbox, push_objects

        replace_name(deployed, "push_objects", push_objects)
        return HttpInbox(grid)
    return PlainInbox(grid)


_PEM = b"-----BEGIN PUBLIC KEY-----"


@dataclass(frozen=True)
class ConnectedNode:
    """A node that is online.

    Attributes:
        node_id: the SuperLink's number of it.
        public_key: the key of its connection (PEM); empty: it is simulated.
        registered: whether the operator registered the key; else the node did so itself, as any process can.
        since: when it was registered, ISO 8601; empty where it is simulated.
        activated: when it last came online, in the same way.
    """

    node_id: int
    public_key: bytes = b""
    registered: bool = False
    since: str = ""
    activated: str = ""

    @property
    def real(self) -> bool:
        """Whether the node is a process, on any machine."""
        return bool(self.public_key)


class ConnectedNodes:
    """The nodes that are online.

    Of a grid that knows ids alone, the same list for as long as these are the same.

    Args:
        grid: knows them.
    """

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self._ids: list[int] | None = None
        self._nodes: list[ConnectedNode] = []

    def now(self) -> list[ConnectedNode]:
        """Return the online nodes by registration; the list is not to be changed."""
        if type(self._grid).get_nodes is not Grid.get_nodes:
            return _nodes_by_registration(self._grid)
        if (ids := list(self._grid.get_node_ids())) != self._ids:
            self._ids, self._nodes = ids, [ConnectedNode(node) for node in ids]
        return self._nodes


def _nodes_by_registration(grid: Grid) -> list[ConnectedNode]:
    nodes = []
    for info in grid.get_nodes():
        if info.public_key.startswith(_PEM):
            # Only the operator's registration gives a node a name.
            times = info.registered_at, info.last_activated_at
            nodes.append(ConnectedNode(info.node_id, info.public_key, bool(info.name), *times))
        else:
            nodes.append(ConnectedNode(info.node_id))
    return sorted(nodes, key=lambda node: node.since)
