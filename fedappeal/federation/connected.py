"""How many clients are connected to a SuperLink, asked anew every few seconds at most."""

import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedappeal.federation.remote import RemoteSuperLink

_KEPT = 5.0
"""Seconds for which an answer counts."""


class ConnectedClients:
    """Counts a SuperLink's nodes that are online.

    Attributes:
        superlink: the SuperLink; None: not known yet.
    """

    def __init__(self, superlink: "RemoteSuperLink | None" = None) -> None:
        self.superlink = superlink
        self._asked = float("-inf")
        self._count: int | None = None
        self._alone = threading.Lock()

    def count(self) -> int | None:
        """Return the number of nodes that are online; None where the SuperLink does not say."""
        with self._alone:
            if self.superlink and time.monotonic() - self._asked > _KEPT:
                self._count = _online(self.superlink)
                self._asked = time.monotonic()
            return self._count


def _online(superlink: "RemoteSuperLink") -> int | None:
    from fedappeal.flower.control import ControlError, control

    try:
        with control(superlink.address, superlink.root_certificates) as api:
            return sum(node.status == "online" for node in api.nodes())
    except ControlError:
        return None
