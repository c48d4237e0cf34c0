"""Clients that failed repeatedly, and that are not waited for until they have done well often enough."""

from collections.abc import Mapping
from typing import Any

_FAILURES = 2
_MOST = 30


class Probation:
    """Clients on probation: from the second failure on, until enough good turns have followed.

    A client owes 4 good turns after its second failure, 8 after the third, and so on. So one that fails every other
    time is not waited for either.
    """

    def __init__(self) -> None:
        self._failures: dict[str, int] = {}
        self._owed: dict[str, int] = {}

    def __contains__(self, client_id: str) -> bool:
        """Whether a client is on probation."""
        return self._failures.get(client_id, 0) >= _FAILURES and self._owed[client_id] > 0

    def clients(self) -> set[str]:
        """Return the ids of the clients on probation."""
        return {client for client in self._owed if client in self}

    def fail(self, client_id: str) -> None:
        """Count a client's failure."""
        failures = self._failures[client_id] = self._failures.get(client_id, 0) + 1
        self._owed[client_id] = 2 ** min(failures, _MOST)

    def succeed(self, client_id: str) -> None:
        """Count a good turn of a client."""
        if self._owed.get(client_id):
            self._owed[client_id] -= 1

    def state(self) -> dict[str, Any]:
        """Return all of it as lists of scalars, for a checkpoint."""
        return {
            "probation-clients": list(self._failures),
            "probation-failures": list(self._failures.values()),
            "probation-owed": [self._owed[client] for client in self._failures],
        }

    @classmethod
    def restored(cls, state: Mapping[str, Any]) -> "Probation":
        """Return what `state` recorded; of a run without it, the beginning."""
        probation = cls()
        if clients := state.get("probation-clients"):
            probation._failures = dict(zip(clients, state["probation-failures"], strict=True))
            probation._owed = dict(zip(clients, state["probation-owed"], strict=True))
        return probation
