"""How many connections to a page each user of the machine may hold.

Some slots are the owner's alone, and no other user can have all of the rest.

The kernel says whose a connection is (`fedappeal.system.socket_owner`). One that no process of this machine holds
counts by its address: another machine's, or the one by which a container is published.
"""

import os
from collections import Counter
from collections.abc import Sequence

from fedappeal.system.socket_owner import Address, NotTold, peer_of

OWNER = 64
"""Connections of the page's owner."""
OTHERS = 64
"""Connections of all others together."""
_EACH = 32
"""Connections of one of the others."""


def visitor(remote: Address | None, local: tuple[str, int | None] | None) -> int | str:
    """Return the user id at the other end of a connection; of another machine, its host."""
    port = local[1] if local else None
    try:
        uid = peer_of(remote, (local[0], port)) if remote and local and port else None
    except (NotTold, ValueError):
        uid = None
    return uid if uid is not None else remote[0] if remote else ""


def has_slot(visitor: int | str, connected: Sequence[int | str]) -> bool:
    """Return whether a visitor may have another connection.

    Args:
        visitor: as `visitor` returns it.
        connected: the visitors of all connections so far, one each.
    """
    by_visitor = Counter(connected)
    if visitor == os.geteuid():
        return by_visitor[visitor] < OWNER
    others = by_visitor.total() - by_visitor[os.geteuid()]
    return by_visitor[visitor] < _EACH and others < OTHERS
