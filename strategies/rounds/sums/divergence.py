"""Divergence: the model is finite, but all training from it ends in NaN or inf."""

from collections.abc import Mapping, Set
from typing import Any

DIVERGED = "the model has diverged: every client that trains from it ends in values that are not finite"
ROUNDS = 3
"""Rounds with such answers: where clients are few, one of them may have been unlucky in its batches."""


class Divergence:
    """Clients whose latest reply held NaN or inf, since the last joiner."""

    def __init__(self) -> None:
        self._rounds = 0
        self._this_round = False
        self._clients: set[str] = set()

    def state(self) -> dict[str, Any]:
        """Return what is carried from round to round: the rounds so far, and the clients."""
        return {"diverging-rounds": self._rounds, "diverging-clients": sorted(self._clients)}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take up what `state` returned."""
        self._rounds, self._clients = int(state["diverging-rounds"]), set(state["diverging-clients"])

    @property
    def suspected(self) -> bool:
        """Whether the latest reply of some client held NaN or inf."""
        return bool(self._clients)

    def note(self, client_id: str, finite: bool) -> None:
        """Take note of a client's answer; none, or an error, says nothing about the model."""
        if finite:
            self._clients.discard(client_id)
        else:
            self._clients.add(client_id)
            self._this_round = True

    def close_round(self, joined: int, remaining: Set[str]) -> bool:
        """End a round; return whether the model has diverged.

        That takes such an answer of every client, so that one of them cannot end a run in which others are enrolled.

        Args:
            joined: clients that joined.
            remaining: all clients that have not left.
        """
        self._rounds += self._this_round
        self._this_round = False
        if joined:
            self._rounds, self._clients = 0, set()
        return self._rounds >= ROUNDS and bool(remaining) and self._clients >= remaining
