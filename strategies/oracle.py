r"""The oracle: inverse-probability weights from participation probabilities that no real server knows.

A bound to compare with, not a method. Where client k joins each round with probability p_k, independently of all
else, the step::

    w <- w + eta (1/N) sum_{k joined} (w_k - w) / p_k

is in expectation that of full participation with equal weights. It is what Wang and Ji compare FedAU with (ICLR 2024;
github.com/IBM/fedau, `known_prob`). A client that sits out because of the model has no such probability: then the
oracle knows only what it was told, and is no bound.

N is the clients whose p_k is given and that have not left for good; where one p is given for all, the clients that
were ever enrolled and have not left.
"""

from typing import Any

from fedappeal.settings.config import ConfigError, Positive
from strategies.rounds.reply import Refused
from strategies.rounds.round import Model, Reply, Round
from strategies.rounds.strategy import Strategy, StrategySettings

_ALL = ""
"""In place of a client-id: every client."""


def parse_probabilities(text: str) -> dict[str, float]:
    """Return probabilities by client-id; under the empty id the one of all clients.

    Args:
        text: ``CLIENT-ID=P`` by commas, or ``P``.

    Raises:
        ConfigError: for anything else, or a P outside (0, 1].
    """
    probabilities: dict[str, float] = {}
    parts = [part.strip() for part in text.split(",")]
    for part in parts:
        client, _, number = part.rpartition("=")
        try:
            probability = float(number)
        except ValueError:
            probability = 0.0
        problem = "" if 0 < probability <= 1 else f"'{number}' is no probability in (0, 1]"
        problem = problem or (f"'{client}' stands there twice" if client in probabilities else "")
        problem = problem or (f"'{part}' names no client" if not client and len(parts) > 1 else "")
        if problem:
            raise ConfigError(f"oracle.probabilities = '{text}' is not allowed: {problem}")
        probabilities[client] = probability
    return probabilities


class Oracle(Strategy):
    """The oracle: inverse-probability weights from probabilities that no server knows; a bound, not a method."""

    name = "oracle"
    refuses_batch_norm = True
    untold = frozenset({"probabilities"})

    class Settings(StrategySettings):
        """The oracle's settings."""

        probabilities: str = "1"
        """CLIENT-ID=P by commas, or one P for all; 1: all always join"""
        server_lr: Positive = 1.0
        """eta, the server's learning rate"""

    settings: Settings

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self._probabilities = parse_probabilities(self.settings.probabilities)

    def weight(self, reply: Reply) -> float:
        """Return 1 / p_k.

        Raises:
            Refused: for a client whose p_k is not known.
        """
        client = reply.member.client_id
        if (probability := self._probabilities.get(client, self._probabilities.get(_ALL))) is None:
            raise Refused(f"oracle.probabilities does not name client '{client}'")
        return 1.0 / probability

    def update(self, round: Round) -> Model:
        """Return ``w + eta/N sum (w_k - w) / p_k``."""
        listed = self._probabilities.keys() - {_ALL}
        clients = listed - round.members.left if listed else round.members.population()
        scale = self.settings.server_lr / len(clients)
        return round.sum.combine(keep=1.0 - scale * round.sum.weight, scale=scale)
