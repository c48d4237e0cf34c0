r"""MW-Fed: clients whose target is not met do more of the work, by multiplicative weights.

Blum, Haghtalab, Phillips, Shao: "One for One, or All for All: Equilibria and Optimality of Collaboration in Federated
Learning". ICML 2021; after Blum, Haghtalab, Procaccia, Qiao: "Collaborative PAC Learning". NIPS 2017. There a round
is one gradient step on a pooled minibatch, of which each client gives a share proportional to its weight; a client
whose target the model does not meet has its weight multiplied, then the weights are normalised.

Among clients that train locally, as MaxFL's comparison has it ("performing more local updates"), the load is local
steps. This is the reading here::

    n_k = max(1, round(tau m v_k / sum_j v_j))   v: the weights; tau: local steps; m: clients asked together
    w   <- sum_k n_k w_k / sum_k n_k             w_k: model after n_k local steps; over those who joined
    v_k <- 2 v_k                                 where w did not meet client k's target, F_k(w) >= rho_k

The models are weighted by steps because in the pooled minibatch each client's gradient counts by its share. A client
that reports nothing keeps its weight. (The code published with the paper, rlphilli/Collaborative-Incentives,
multiplies by 4 and may give a client no work at all; here each has at least one step, so that it goes on reporting.)
"""

from collections.abc import Sequence
from typing import Unpack

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict

from fedappeal.protocol import keys
from fedappeal.protocol.config import ConfigError, Scalar
from strategies.fold import Refused, WeightedSum
from strategies.members import Member
from strategies.replies import TrainReply, claim
from strategies.shared import Shared
from strategies.volunteers import VolunteerStrategy

_WEIGHTS = "weights"


def loads(doublings: Sequence[int], local_steps: int) -> list[int]:
    """Return the local steps n_k of clients that share a budget of ``local_steps`` steps each.

    Args:
        doublings: log2 of the clients' weights v_k, any size; at least one client.
        local_steps: tau, at least 1.
    """
    weights = np.exp2(np.subtract(doublings, max(doublings), dtype=np.float64))
    shares = weights / weights.sum()
    return [max(1, round(local_steps * len(doublings) * share)) for share in shares.tolist()]


class MWFed(VolunteerStrategy):
    """MW-Fed's server.

    Args:
        local_steps: tau, the mean number of local steps a round.
        shared: settings that all strategies share.

    Raises:
        ConfigError: for a setting that is not allowed.
    """

    def __init__(self, *, local_steps: int, **shared: Unpack[Shared]) -> None:
        super().__init__(**shared)
        if local_steps < 1:
            raise ConfigError(f"local-steps = {local_steps} is not allowed: at least 1 (MW-Fed shares out steps)")
        self.local_steps = local_steps
        self._doublings: dict[str, int] = {}
        self._loads: dict[str, int] = {}
        self._satisfied = 0

    def gather(self, arrays: ArrayRecord) -> None:
        """Begin to gather a round's joined replies."""
        super().gather(arrays)
        self._loads, self._satisfied = {}, 0

    def train_settings(self) -> dict[str, Scalar]:
        """Ask each client whether its target is met."""
        return {keys.REPORT: keys.SATISFIED}

    def train_messages(
        self, wave: Sequence[Member], arrays: ArrayRecord, config: ConfigRecord, ttl: float
    ) -> list[tuple[Member, Message]]:
        """Share out the wave's local steps by weight, and return its messages; ``ttl`` in seconds."""
        ids = [member.client_id for member in wave]
        if ids:
            self._loads |= zip(ids, loads([self._doublings.get(i, 0) for i in ids], self.local_steps), strict=True)
        return super().train_messages(wave, arrays, config, ttl)

    def client_settings(self, member: Member) -> dict[str, Scalar]:
        """Tell a client its load."""
        return {"local-steps": self._loads[member.client_id], "local-epochs": 0}

    def accept(self, member: Member, reply: TrainReply) -> None:
        """Take in a local model, and double its client's weight where the target is not met.

        Raises:
            Refused: for a claim that is not 0 or 1, or a model that does not fit.
        """
        assert self._fold is not None
        assert reply.arrays is not None
        satisfied = claim(reply.metrics, keys.SATISFIED)
        if satisfied not in (0, 1):
            raise Refused(f"{keys.SATISFIED} = {satisfied} is not allowed: 0 or 1")
        if member.client_id not in self._loads:
            raise Refused("reply of a client that this round did not ask")
        self._fold.add(reply.arrays, self._loads[member.client_id])
        self._satisfied += int(satisfied)
        self._doublings[member.client_id] = self._doublings.get(member.client_id, 0) + int(not satisfied)

    def update(self, folded: WeightedSum) -> tuple[ArrayRecord, dict[str, float]]:
        """Return the average weighted by local steps, and for the history the share of joiners that are satisfied."""
        return folded.combine(keep=0.0, scale=1.0 / folded.weight), {"satisfied": self._satisfied / folded.count}

    def state(self) -> RecordDict:
        """Return what all strategies carry, and log2 of the weights."""
        state = super().state()
        values = list(self._doublings.values())
        state[_WEIGHTS] = ConfigRecord({"clients": list(self._doublings), "doublings": values})
        return state

    def restore(self, state: RecordDict) -> None:
        """Take up what `state` returned."""
        super().restore(state)
        carried = state.config_records[_WEIGHTS]
        self._doublings = dict(zip(carried["clients"], carried["doublings"], strict=True))  # type: ignore[arg-type, misc]
