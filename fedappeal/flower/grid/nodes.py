"""The nodes behind a Grid, and the keys that the SuperLink knows them by.

The SuperLink checks a signature of a node's key at each call of the node, so that its word on a node's key is as good
as a proof. Nodes of a simulation have no key: Flower gives them random bytes.
"""

from dataclasses import dataclass

from flwr.serverapp import Grid

_PEM = b"-----BEGIN PUBLIC KEY-----"


@dataclass(frozen=True)
class ConnectedNode:
    """A node that is online.

    Attributes:
        node_id: the SuperLink's number of it.
        public_key: the key of its connection (PEM); empty: it is simulated.
        registered: whether the operator registered the key; else the node did so itself, as any process can.
        since: when it was registered, ISO 8601; empty where it is simulated.
    """

    node_id: int
    public_key: bytes = b""
    registered: bool = False
    since: str = ""

    @property
    def real(self) -> bool:
        """Whether there is a process behind it, on whatever machine."""
        return bool(self.public_key)


class ConnectedNodes:
    """The nodes that are online; of a grid that knows ids alone the same list, for as long as these are the same.

    Args:
        grid: knows them.
    """

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self._ids: list[int] | None = None
        self._nodes: list[ConnectedNode] = []

    def now(self) -> list[ConnectedNode]:
        """Return the nodes that are online now, the one registered first in front; the list is not to be changed."""
        if type(self._grid).get_nodes is not Grid.get_nodes:
            return _registered(self._grid)
        if (ids := list(self._grid.get_node_ids())) != self._ids:
            self._ids, self._nodes = ids, [ConnectedNode(node) for node in ids]
        return self._nodes


def _registered(grid: Grid) -> list[ConnectedNode]:
    nodes = []
    for info in grid.get_nodes():
        if info.public_key.startswith(_PEM):
            # Only the operator's registration gives a node a name.
            nodes.append(ConnectedNode(info.node_id, info.public_key, bool(info.name), info.registered_at))
        else:
            nodes.append(ConnectedNode(info.node_id))
    return sorted(nodes, key=lambda node: node.since)
