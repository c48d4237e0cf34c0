"""When a model has diverged: it is finite, but nobody can train from it any more."""

from collections.abc import Set

DIVERGED = "the model has diverged: whoever trains from it ends in values that are not finite"
ROUNDS = 3
"""Rounds in a row: where clients are few, one of them may have been unlucky in its batches."""


class Divergence:
    """Which clients have answered with values that are not finite since anybody last joined."""

    def __init__(self) -> None:
        self._rounds = 0
        self._clients: set[str] = set()

    def not_finite(self, client_id: str) -> None:
        """Take note of a client's answer."""
        self._clients.add(client_id)

    def close_round(self, joined: int, everybody: Set[str]) -> bool:
        """End a round; return whether the model has diverged.

        That takes every client of the run, so that none can end a run of others: one that is offline, or that decides
        not to train, speaks against it.

        Args:
            joined: clients that joined.
            everybody: all clients that have not left.
        """
        if joined or not self._clients:
            self._rounds, self._clients = 0, set()
            return False
        self._rounds += 1
        return self._rounds >= ROUNDS and bool(everybody) and self._clients >= everybody
