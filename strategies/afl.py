r"""AFL: a model for the worst mixture of the clients' data.

Mohri, Sivek, Suresh: "Agnostic Federated Learning". ICML 2019. The problem is, over mixtures lambda of N clients::

    min_w max_{lambda in the simplex}  sum_k lambda_k F_k(w)

whose inner maximum is the worst client's loss. Descent in w and ascent in lambda take turns, as in the program of
q-FFL's authors (github.com/litian96/fair_flearn, `afl`), where every client takes part in every round::

    w      <- w - eta_w sum_k lambda_k grad F_k(w)
    lambda <- the nearest point of the simplex to lambda + eta_lambda (F_1(w), ..., F_N(w))

Here the clients train locally, and the first line is the average of their models by lambda_k: with `local-steps = 1`
it is that line. F_k is the training loss of the model that was sent.

Clients that sit out report no loss, so their lambda_k stay: the clients that join share out anew what they have
together, by the same projection. Where all join it is the paper's line. A new client begins with the share 1 / N,
taken from the others in proportion, to whom the share of a client goes that leaves for good. Where lambda lies on
absent clients alone, the joiners count alike and lambda stays, as there is no share that could move. The paper's
averages over the rounds are not taken: clients judge the latest model.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedappeal.core.requirement import Measured
from fedappeal.protocol import keys
from fedappeal.settings.config import Positive
from strategies.rounds.algorithm import Influence
from strategies.rounds.round import Model, Reply, Round, log
from strategies.rounds.strategy import Claims, Strategy, StrategySettings

_MIXTURE = "mixture"
_LEAST = 1e-12
"""Share of a client whose lambda_k is 0: it counts only where all that joined are such clients."""


def onto_simplex(point: NDArray[np.float64], total: float) -> NDArray[np.float64]:
    """Return the nearest point whose entries are at least 0 and add up to ``total``.

    Args:
        point: finite numbers, shape ``(n,)``, n at least 1.
        total: more than 0.
    """
    # An entry more than `total` below the largest becomes 0 in any case: cut there, no sum overflows.
    near = np.maximum(point - point.max(), -total)
    falling = np.sort(near)[::-1]
    excess = (np.cumsum(falling) - total) / np.arange(1, len(near) + 1)
    theta = excess[np.flatnonzero(falling > excess)[-1]]
    projected: NDArray[np.float64] = np.maximum(near - theta, 0.0)
    return projected


def shared_out(mixture: Mapping[str, float], clients: Iterable[str]) -> dict[str, float]:
    """Return a mixture over other clients.

    Shares of new ones are 1 / N, and the rest keep their proportions.
    """
    here = sorted(clients)
    shares = {client: mixture[client] for client in here if client in mixture}
    total, new = sum(shares.values()), 1.0 / len(here) if here else 0.0
    left = 1.0 - new * (len(here) - len(shares))
    old = {client: left * share / total if total else left / len(shares) for client, share in shares.items()}
    return {client: old.get(client, new) for client in here}


@dataclass
class Mixed:
    """One round: lambda over the clients, and the losses of those that joined."""

    shares: dict[str, float]
    losses: dict[str, float] = field(default_factory=dict)


def share_of(round: Round, reply: Reply) -> float:
    """Return lambda_k of a reply's client."""
    mixed: Mixed = round.carry
    return max(_LEAST, mixed.shares.get(reply.member.client_id, 0.0))


class MixtureInfluence(Influence):
    """Clients are compared by lambda_k."""

    def log_weight(self, round: Round, reply: Reply) -> float:
        """Return the logarithm of lambda_k."""
        return log(share_of(round, reply))


class AFL(Strategy):
    """AFL (Mohri et al., ICML 2019): a model for the worst mixture of the clients' data."""

    name = "afl"
    needs_losses = True
    influence = MixtureInfluence
    still_open = "a client that claims a large loss takes over the mixture, up to its bounded share of a round"

    class Settings(StrategySettings):
        """AFL's settings."""

        mixture_rate: Positive = 0.1
        """eta_lambda, how fast the mixture follows the losses"""

    settings: Settings

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.mixture: dict[str, float] = {}
        """lambda, by client."""

    def report(self, measured: Measured) -> Claims:
        """Return F_k of the model that was sent."""
        return {keys.LOSS: measured.loss}

    def begin(self, round: Round) -> None:
        """Begin with the mixture over the clients that have not left."""
        round.carry = Mixed(shared_out(self.mixture, round.members.population(self.mixture)))

    def add(self, round: Round, reply: Reply) -> None:
        """Take in a model and its client's loss.

        Raises:
            Refused: for a loss below 0 or a model that does not fit.
        """
        loss = reply.claim(keys.LOSS, low=0.0)
        round.sum.add(reply.arrays, share_of(round, reply) * reply.counts)
        round.carry.losses[reply.member.client_id] = loss

    def update(self, round: Round) -> Model:
        """Return the average by lambda, and move lambda towards the clients with the larger losses."""
        mixed: Mixed = round.carry
        joined = [client for client in mixed.losses if client in mixed.shares]
        shares = np.array([mixed.shares[client] for client in joined])
        if (total := float(shares.sum())) > 0:
            losses = np.array([mixed.losses[client] for client in joined])
            with np.errstate(over="ignore"):
                moved = np.minimum(shares + self.settings.mixture_rate * losses, np.finfo(np.float64).max)
            mixed.shares |= zip(joined, onto_simplex(moved, total).tolist(), strict=True)
        self.mixture = mixed.shares
        round.metrics["largest_share"] = max(mixed.shares.values())
        return super().update(round)

    def carried(self) -> dict[str, Any]:
        """Return the mixture."""
        return {_MIXTURE: {"clients": list(self.mixture), "shares": list(self.mixture.values())}}

    def take_up(self, carried: Mapping[str, Mapping[str, Any]]) -> None:
        """Take up the mixture."""
        mixture = carried[_MIXTURE]
        self.mixture = dict(zip(mixture["clients"], mixture["shares"], strict=True))
