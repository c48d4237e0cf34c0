"""The roll call's calls: each node once, few at a time, ever less often after failures."""

import secrets
from collections.abc import Iterable
from dataclasses import dataclass, field

from fedappeal.flower.grid.nodes import ConnectedNode

FIRST_PAUSE = 1.0
"""Seconds until a node is called again that did not answer."""
LONGEST_PAUSE = 60.0
"""Most that this becomes; it doubles each time."""
AT_ONCE = 5.0
"""Seconds in which no more nodes are called, without an answer from them, than the run has places, at least `FEW`."""
FEW = 32


@dataclass
class Call:
    """A roll call that was sent.

    Attributes:
        node: to which.
        sent: when, on the run's clock.
        until: when its time is over.
        nonce: what the client signs; empty in a simulation.
    """

    node: ConnectedNode
    sent: float
    until: float
    nonce: str = ""


@dataclass
class Calls:
    """The calls of a run.

    Attributes:
        places: how many clients the run takes in; 0: all.
        pending: calls without an answer, by message id.
    """

    places: int = 0
    pending: dict[str, Call] = field(default_factory=dict)
    _called: set[int] = field(default_factory=set)
    _failed: dict[int, int] = field(default_factory=dict)
    _due: dict[int, float] = field(default_factory=dict)

    def expire(self, now: float) -> None:
        """Give up the calls whose time is over: those nodes are called again."""
        for message_id, call in list(self.pending.items()):
            if now >= call.until:
                del self.pending[message_id]
                self._called.discard(call.node.node_id)

    def due(self, online: Iterable[ConnectedNode], now: float, ttl: float) -> list[Call]:
        """Return the calls to make now, to nodes that are online, in their order."""
        fresh = [node for node in online if node.node_id not in self._called]
        fresh = [node for node in fresh if now >= self._due.get(node.node_id, now)]
        if self.places and any(node.real for node in fresh):
            unanswered = sum(now < call.sent + AT_ONCE for call in self.pending.values())
            fresh = fresh[: max(0, max(self.places, FEW) - unanswered)]
        return [Call(node, now, now + ttl, secrets.token_hex(16) if node.real else "") for node in fresh]

    def waiting(self, online: Iterable[ConnectedNode]) -> bool:
        """Whether some node that is online has not been called."""
        return any(node.node_id not in self._called for node in online)

    def sent(self, message_id: str, call: Call) -> None:
        """Take note of a call that was sent."""
        self.pending[message_id] = call
        self._called.add(call.node.node_id)

    def again(self, nodes: Iterable[int]) -> None:
        """Let nodes be called again, once their pause is over."""
        self._called.difference_update(nodes)

    def failed(self, node_id: int, now: float) -> tuple[int, float]:
        """Pause the calls to a node; return how often it has failed, and the pause in seconds."""
        times = self._failed[node_id] = self._failed.get(node_id, 0) + 1
        pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** min(times - 1, 30))
        self._due[node_id] = now + pause
        return times, pause

    def succeeded(self, node_id: int) -> None:
        """Forget how often a node has failed."""
        self._failed.pop(node_id, None)
        self._due.pop(node_id, None)
