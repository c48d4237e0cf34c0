r"""FedAU: an update counts by the mean number of rounds that its client takes to join again.

Wang, Ji: "A Lightweight Method for Tackling Unknown Participation Statistics in Federated Averaging". ICLR 2024. Each
of N clients joins with a probability p_k that the server does not know; FedAvg then drifts towards the clients that
join often. The best weight is 1 / p_k, which the mean interval between two joins estimates. After the program of the
authors (github.com/IBM/fedau, `adaptive`)::

    w   <- w + eta (1/N) sum_{k joined} a_k (w_k - w)
    a_k =  the mean of client k's intervals so far; 1 while it has none

A join ends an interval, which counts from the next round on. So does the K-th round in a row without one: the cutoff
K bounds a_k, and with it the variance.

N is the clients that were ever enrolled and have not left: one that sits out, is offline, or is not asked misses a
round. One that leaves for good is no part of the objective any more, and its intervals are forgotten.
A client's first interval begins with the first round after it was enrolled.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fedappeal.settings.config import Count, Positive
from strategies.rounds.round import KEEP_MODEL, Kept, Model, Reply, Round
from strategies.rounds.strategy import Strategy, StrategySettings

_PARTICIPATION = "participation"
_COLUMNS = ("silent", "intervals", "rounds")


@dataclass
class Participation:
    """One client's intervals between joins.

    Attributes:
        silent: rounds since its last interval ended.
        intervals: their number.
        rounds: their sum.
    """

    silent: int = 0
    intervals: int = 0
    rounds: int = 0

    @property
    def weight(self) -> float:
        """The mean interval; 1 while there is none."""
        return self.rounds / self.intervals if self.intervals else 1.0

    def count(self, joined: bool, cutoff: int) -> None:
        """Count a round, in which the client joined or did not; ``cutoff``: the longest interval."""
        self.silent += 1
        if joined or self.silent >= cutoff:
            self.intervals, self.rounds, self.silent = self.intervals + 1, self.rounds + self.silent, 0


class FedAU(Strategy):
    """FedAU (Wang and Ji, ICLR 2024): clients that seldom join count more, by their own history."""

    name = "fedau"
    refuses_batch_norm = True
    still_open = "it weighs more after it has stayed away for long, up to the bound"

    class Settings(StrategySettings):
        """FedAU's settings."""

        cutoff: Count = 50
        """K, the most rounds of an interval; 1 weights all clients alike"""
        server_lr: Positive = 1.0
        """eta, the server's learning rate"""

    settings: Settings

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self._history: dict[str, Participation] = {}

    def begin(self, round: Round) -> None:
        """Begin with no joiner."""
        round.carry = set[str]()

    def weight(self, reply: Reply) -> float:
        """Return a_k."""
        return self._history.get(reply.member.client_id, Participation()).weight

    def add(self, round: Round, reply: Reply) -> None:
        """Take in a model, and note who joined.

        Raises:
            Refused: if the model does not fit.
        """
        super().add(round, reply)
        round.carry.add(reply.member.client_id)

    def finish(self, round: Round) -> Model | Kept:
        """Return ``w + eta/N sum a_k (w_k - w)``; every client's interval is one round longer, or ends."""
        joined: set[str] = round.carry
        clients = round.members.population(self._history)
        self._history = {client: self._history.get(client, Participation()) for client in sorted(clients)}
        for client, history in self._history.items():
            history.count(client in joined, self.settings.cutoff)
        if not round.sum.count:
            return KEEP_MODEL
        scale = self.settings.server_lr / len(clients)
        return round.sum.combine(keep=1.0 - scale * round.sum.weight, scale=scale)

    def carried(self) -> dict[str, Any]:
        """Return the clients' intervals."""
        histories = self._history.values()
        columns = {name: [getattr(history, name) for history in histories] for name in _COLUMNS}
        return {_PARTICIPATION: {"clients": list(self._history), **columns}}

    def take_up(self, carried: Mapping[str, Mapping[str, Any]]) -> None:
        """Take up the intervals."""
        columns = carried[_PARTICIPATION]
        rows = zip(*(columns[name] for name in ("clients", *_COLUMNS)), strict=True)
        self._history = {client: Participation(*row) for client, *row in rows}
