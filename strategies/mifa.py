r"""MIFA: each client's latest update counts in every round, whether or not it joins.

Gu, Huang, Zhang, Huang: "Fast Federated Learning in the Presence of Arbitrary Device Unavailability". NeurIPS 2021.
The server remembers the latest update G_k of each client, in units of the learning rate, and moves by the mean of all
N of them; a client that has not joined yet has G_k = 0::

    G_k <- (w_k - w) / eta_t        where client k joined in round t
    w   <- w + eta_t (1/N) sum_k G_k

This is the form of the authors' program that does not wait for every client before it begins (github.com/hmgxr128/
MIFA_code, `fdu_no_wait`). A client that does not join is not missed: its last update stands for it, however old.

N is the clients that were ever enrolled and have not left. The update of a client that sits out, or is offline, is
kept: that is the method. That of a client which leaves for good is forgotten: it would grow stale without end, and
pull towards an objective that its client no longer shares. A round without a joiner moves the model too.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedappeal.protocol.packing import array_record, view
from strategies.rounds.round import KEEP_MODEL, Kept, Model, Reply, Round
from strategies.rounds.strategy import Strategy
from strategies.rounds.sums.weighted_sum import finite

_UPDATES = "updates"

Update = dict[str, NDArray[Any]]
"""An update by array, each as one vector; of whole numbers in float64."""


class MIFA(Strategy):
    """MIFA (Gu et al., NeurIPS 2021): each client's latest update counts until it sends another."""

    name = "mifa"
    refuses_batch_norm = True
    still_open = "its latest update, of bounded norm, counts in every round until it joins again"

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self._updates: dict[str, Update] = {}

    def begin(self, round: Round) -> None:
        """Begin without an update."""
        round.carry = dict[str, Update]()

    def add(self, round: Round, reply: Reply) -> None:
        """Take in one update.

        Raises:
            Refused: if the model does not fit.
        """
        scale = reply.counts / round.lr_share
        update = Update()
        for name, values in round.sum.check(reply.arrays).items():
            local: NDArray[Any] = values
            sent: NDArray[Any] = view(round.model[name]).reshape(-1)
            kind = local.dtype if np.issubdtype(local.dtype, np.floating) else np.dtype(np.float64)
            update[name] = np.asarray(np.subtract(local, sent, dtype=kind) * kind.type(scale))
        round.carry[reply.member.client_id] = update

    def finish(self, round: Round) -> Model | Kept:
        """Return ``w + eta_t mean G_k``, and remember the round's updates; both or neither."""
        here = round.members.population(self._updates)
        updates = {client: update for client, update in (self._updates | round.carry).items() if client in here}
        if not updates:
            self._updates = updates
            return KEEP_MODEL
        model = Update()
        for name, array in round.model.items():
            w: NDArray[Any] = view(array)
            moved = np.zeros(w.size, np.float64)
            for update in updates.values():
                moved += update[name]
            with np.errstate(over="ignore"):
                exact = w + moved.reshape(w.shape) * (round.lr_share / len(here))
                model[name] = (exact if np.issubdtype(w.dtype, np.floating) else np.rint(exact)).astype(w.dtype)
        if not finite(new := array_record(model)):
            round.metrics["not_finite"] = 1.0
            return KEEP_MODEL
        self._updates = updates
        return new

    def carried(self) -> dict[str, Any]:
        """Return the clients' latest updates."""
        updates = self._updates.items()
        return {_UPDATES: {f"{client}/{name}": array for client, update in updates for name, array in update.items()}}

    def take_up(self, carried: Mapping[str, Mapping[str, Any]]) -> None:
        """Take up the updates."""
        self._updates = {}
        for key, array in carried.get(_UPDATES, {}).items():
            client, _, name = key.partition("/")
            self._updates.setdefault(client, {})[name] = array
