"""The calls of a roll call: which nodes were called, which are called again, and when."""

import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from fedappeal.flower.grid.inbox import ConnectedNode

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
        nonce: what the client signs; empty in a simulation.
    """

    node: ConnectedNode
    sent: float
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
    _called: dict[int, str] = field(default_factory=dict)
    _failed: dict[int, tuple[int, float]] = field(default_factory=dict)
    """By node: how often, and until when it is not called."""

    def expire(self, now: float, ttl: float) -> None:
        """Give up the calls whose time is over, so that their nodes are called again.

        Pauses that are long over are forgotten.
        """
        self._failed = {node: pause for node, pause in self._failed.items() if now < pause[1] + LONGEST_PAUSE}
        for message_id, call in list(self.pending.items()):
            if now >= call.sent + ttl:
                del self.pending[message_id]
                self.again([call.node.node_id])

    def due(self, online: Iterable[ConnectedNode], now: float) -> list[Call]:
        """Return the calls to make now, to nodes that are online, in their order."""
        fresh = [node for node in online if node.node_id not in self._called]
        fresh = [node for node in fresh if now >= self._failed.get(node.node_id, (0, now))[1]]
        if self.places and any(node.real for node in fresh):
            unanswered = sum(now < call.sent + AT_ONCE for call in self.pending.values())
            fresh = fresh[: max(0, max(self.places, FEW) - unanswered)]
        return [Call(node, now, secrets.token_hex(16) if node.real else "") for node in fresh]

    def waiting(self, online: Iterable[ConnectedNode]) -> bool:
        """Whether some node that is online has not been called."""
        return any(node.node_id not in self._called for node in online)

    def sent(self, message_id: str, call: Call) -> None:
        """Take note of a call that was sent."""
        self.pending[message_id] = call
        self._called[call.node.node_id] = call.node.activated

    def again(self, nodes: Iterable[int]) -> None:
        """Let nodes be called again, once their pause is over."""
        for node_id in nodes:
            self._called.pop(node_id, None)

    def renewed(self, online: Mapping[int, str]) -> set[int]:
        """Return the nodes that came online anew since they were called; ``online``: when each did so last."""
        return {node for node, activated in online.items() if self._called.get(node, activated) != activated}

    def lost(self, online: Mapping[int, str], now: float) -> set[int]:
        """Give up the calls to nodes that came online anew without an answer; return these nodes.

        A call is given up `AT_ONCE` seconds after it was sent: nodes that always come online anew gain no calls.
        """
        overdue = {c.node.node_id: message_id for message_id, c in self.pending.items() if now >= c.sent + AT_ONCE}
        lost = self.renewed({node: online[node] for node in overdue if node in online})
        for node in lost:
            del self.pending[overdue[node]]
        return lost

    def failed(self, node_id: int, now: float) -> tuple[int, float]:
        """Pause the calls to a node; return how often it has failed, and the pause in seconds."""
        times = self._failed.get(node_id, (0, now))[0] + 1
        pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** min(times - 1, 30))
        self._failed[node_id] = times, now + pause
        return times, pause

    def succeeded(self, node_id: int) -> None:
        """Forget how often a node has failed."""
        self._failed.pop(node_id, None)
