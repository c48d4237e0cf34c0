"""Where the replies to a run's messages come from, in every runtime."""

import sys
from collections.abc import Iterable, Sequence
from typing import Protocol

from flwr.app import Message
from flwr.serverapp import Grid
from flwr.supercore.run import Run

from fedappeal.flower.processes import replace_name
from fedappeal.protocol.packing import Allowance

__all__ = ["Inbox", "PlainInbox", "Run", "inbox_of"]

_HTTP_GRID = "flwr.superlink.grid.http_grid"


class Inbox(Protocol):
    """Where replies come from.

    Attributes:
        remote: whether they come from other machines, so that time and size say something about a client.
    """

    remote: bool

    def pull(self, ids: Iterable[str], allowance: Allowance, unread: Sequence[str] = ()) -> list[Message]:
        """Return the replies that are there, without waiting for any.

        Args:
            ids: of the messages whose replies are wanted.
            allowance: what each of these replies may hold.
            unread: of messages to which only the fact of an answer matters: the reply may come without its content.
        """


class PlainInbox:
    """The replies of a grid whose clients are this machine's own: taken as they are."""

    remote = False

    def __init__(self, grid: Grid) -> None:
        self._grid = grid

    def pull(self, ids: Iterable[str], allowance: Allowance, unread: Sequence[str] = ()) -> list[Message]:
        """Return the replies that are there; see `Inbox`."""
        return list(self._grid.pull_messages([*ids, *unread]))


def inbox_of(grid: Grid) -> Inbox:
    """Return where a grid's replies come from: of a SuperLink, without trust in what clients sent there.

    A SuperLink's grid pushes a message's objects one by one from then on.
    """
    # A simulation never loads Flower's HTTP grid, and a ServerApp that is given one has loaded it.
    deployed = sys.modules.get(_HTTP_GRID)
    if deployed is not None and isinstance(grid, deployed.HttpGrid):
        from fedappeal.flower.grid.http_inbox import HttpInbox, push_objects

        replace_name(deployed, "push_objects", push_objects)
        return HttpInbox(grid)
    return PlainInbox(grid)
