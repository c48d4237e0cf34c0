"""Places for the nodes that register themselves, bounded: a flood of new keys fills neither memory nor database.

Flower keeps each node for good, a node that unregistered too, and goes through all of them whenever a run looks who
is online.
"""

import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

from flwr.server.superlink.linkstate import SqlLinkState
from flwr.supercore import date
from flwr.supercore.constant import NodeStatus
from sqlalchemy import text

from fedappeal.flower.superlink.superlink_log import RateLimitedLog

MOST_REGISTERED = 4096
"""Nodes that registered themselves; the operator's are not counted and not forgotten."""
LOOKED_EVERY = 1.0
"""Seconds between two looks for places, once all are taken."""
COMES_WITHIN = 10.0
"""Seconds that a node has from its registration, or from going offline, in which it is not forgotten."""
_LOG = RateLimitedLog()


class NodePlaces:
    """The places for nodes in a link state.

    Where all are taken, half are freed, of the nodes that are offline for longest.

    Args:
        state: the SuperLink's link state, of either kind.
        clock: seconds.
    """

    def __init__(self, state: Any, clock: Callable[[], float] = time.monotonic) -> None:
        self._state, self._clock = state, clock
        self._left, self._looked = 0, float("-inf")
        self._lock = threading.Lock()

    def take(self) -> bool:
        """Take a place for a self-registered node; return whether there is one."""
        with self._lock:
            if not self._left and self._clock() - self._looked >= LOOKED_EVERY:
                self._looked = self._clock()
                self._left = self._make_room()
            if not self._left:
                _LOG.warn(
                    f"new nodes are refused: {MOST_REGISTERED:,} that registered themselves were online just now"
                )
                return False
            self._left -= 1
            return True

    def _make_room(self) -> int:
        """Return the free places, after nodes were forgotten if none was."""
        # Only the operator's registration gives a node a name.
        nodes = [node for node in self._state.get_node_info() if not node.name]
        if len(nodes) < MOST_REGISTERED:
            return MOST_REGISTERED - len(nodes)
        since = (date.now() - timedelta(seconds=COMES_WITHIN)).isoformat()
        offline = [node for node in nodes if node.status != NodeStatus.ONLINE and _last_heard(node) <= since]
        idle = sorted(offline, key=_last_heard)
        forgotten = idle[: len(nodes) - MOST_REGISTERED // 2]
        forget(self._state, forgotten)
        return max(0, MOST_REGISTERED - len(nodes) + len(forgotten))


def forget(state: Any, nodes: Sequence[Any]) -> None:
    """Forget nodes, which Flower never does; returning ones register anew."""
    if isinstance(state, SqlLinkState):
        online = NodeStatus.ONLINE  # one may have come back meanwhile
        ids = [{"id": (node.node_id ^ 1 << 63) - (1 << 63), "online": online} for node in nodes]  # signed numbers
        if ids:
            with state.session() as session:
                session.execute(text("DELETE FROM node WHERE node_id = :id AND status != :online"), ids)
        return
    with state.lock:
        for node in nodes:
            if (now := state.nodes.get(node.node_id)) is None or now.status == NodeStatus.ONLINE:
                continue  # it came back meanwhile
            del state.nodes[node.node_id], state.node_public_key_to_node_id[node.public_key]
            state.owner_to_node_ids[node.owner_aid].discard(node.node_id)


def _last_heard(node: Any) -> str:
    return str(max(node.registered_at, node.last_activated_at or "", node.last_deactivated_at or ""))
