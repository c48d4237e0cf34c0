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


def connected_nodes(grid: Grid) -> list[ConnectedNode]:
    """Return the nodes that are online now, the one registered first in front."""
    if type(grid).get_nodes is Grid.get_nodes:  # it knows ids alone
        return [ConnectedNode(node) for node in grid.get_node_ids()]
    nodes = []
    for info in grid.get_nodes():
        if info.public_key.startswith(_PEM):
            # Only the operator's registration gives a node a name.
            nodes.append(ConnectedNode(info.node_id, info.public_key, bool(info.name), info.registered_at))
        else:
            nodes.append(ConnectedNode(info.node_id))
    return sorted(nodes, key=lambda node: node.since)
