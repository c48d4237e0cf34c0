r"""MW-Fed: clients whose target is not met do more of the work, by multiplicative weights.

Blum, Haghtalab, Phillips, Shao: "One for One, or All for All: Equilibria and Optimality of Collaboration in Federated
Learning". ICML 2021; after Blum, Haghtalab, Procaccia, Qiao: "Collaborative PAC Learning". NIPS 2017. There a round
is one gradient step on a pooled minibatch, of which each client gives a share proportional to its weight; a client
whose target the model does not meet has its weight multiplied, then the weights are normalised.

Among clients that train locally, as MaxFL's comparison has it ("performing more local updates"), the load is local
steps. This is the reading here::

    n_k = max(1, round(tau m v_k / sum_j v_j))   v: the weights; tau: local steps; m: clients asked together
    w   <- sum_k n_k w_k / sum_k n_k             w_k: model after n_k local steps; over the clients that joined
    v_k <- 2 v_k                                 where w did not meet client k's target, F_k(w) >= rho_k

The models are weighted by steps because in the pooled minibatch each client's gradient counts by its share. A client
that reports nothing keeps its weight. (The code published with the paper, rlphilli/Collaborative-Incentives,
multiplies by 4 and may give a client no work at all; here each has at least one step, so that it can still report.)
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median_low
from typing import Any, ClassVar

import numpy as np

from fedappeal.core.requirement import Measured
from fedappeal.settings.config import ConfigError, Count, RunConfig
from strategies.rounds.algorithm import Influence
from strategies.rounds.exchange.members import Member
from strategies.rounds.reply import Refused
from strategies.rounds.round import Instructions, Model, Reply, Round, log
from strategies.rounds.strategy import Claims, Strategy, StrategySettings

SATISFIED = "satisfied"
"""Key in a joined reply: 1 where the model that was sent meets the client's requirement, else 0."""
_WEIGHTS = "weights"


def loads(doublings: Sequence[int], local_steps: int, most: float = math.inf) -> list[int]:
    """Return the local steps n_k of clients that share a budget of ``local_steps`` steps each.

    Args:
        doublings: log2 of the clients' weights v_k, any size; at least one client.
        local_steps: tau, at least 1.
        most: largest weight, in medians of the clients' weights.
    """
    highest = min(float(max(doublings)), median_low(doublings) + math.log2(most))
    weights = np.exp2(np.minimum(0.0, np.subtract(doublings, highest, dtype=np.float64)))
    shares = weights / weights.sum()
    return [max(1, round(local_steps * len(doublings) * share)) for share in shares.tolist()]


@dataclass
class SharedWork:
    """One round: each asked client's local steps, and by client whether its target is met."""

    loads: dict[str, int] = field(default_factory=dict)
    satisfied: dict[str, bool] = field(default_factory=dict)


def load_of(round: Round, reply: Reply) -> int:
    """Return n_k, the steps that a reply's client was told.

    Raises:
        Refused: the round did not ask it.
    """
    steps: dict[str, int] = round.carry.loads
    if reply.member.client_id not in steps:
        raise Refused("reply of a client that this round did not ask")
    return steps[reply.member.client_id]


class LoadInfluence(Influence):
    """Clients are compared by the steps that they were told."""

    def log_weight(self, round: Round, reply: Reply) -> float:
        """Return the logarithm of n_k."""
        return log(load_of(round, reply))

    def update_unit(self, round: Round, reply: Reply) -> float:
        """Return how many times the mean number of steps the client was told, at least 1."""
        return max(1.0, load_of(round, reply) / float(self.settings.local_steps))


class MWFed(Strategy):
    """MW-Fed (Blum et al., ICML 2021): clients whose target is not met do more of the work."""

    name = "mwfed"
    needs_appeal = True
    influence = LoadInfluence
    from_run: ClassVar[Mapping[str, str]] = {"local_steps": "local-steps"}

    class Settings(StrategySettings):
        """MW-Fed's settings."""

        local_steps: Count | None = None
        """tau, the mean number of local steps a round; not set: local-steps of the run"""

    settings: Settings

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        if self.settings.local_steps is None:
            raise ConfigError("mwfed.local-steps is missing: the mean number of local steps a round, at least 1")
        self.local_steps = self.settings.local_steps
        self._doublings: dict[str, int] = {}

    @classmethod
    def check_run(cls, config: RunConfig, settings: Any) -> None:
        """Refuse epochs.

        Raises:
            ConfigError: where the run has no number of local steps.
        """
        if not config.local_steps:
            raise ConfigError(
                f"local-steps = 0 is not allowed with strategy = '{cls.name}': it shares out steps, not epochs "
                "(at least 1)"
            )

    def report(self, measured: Measured) -> Claims:
        """Return whether the client's target is met."""
        return {SATISFIED: int(measured.met)}

    def begin(self, round: Round) -> None:
        """Begin with no work shared out."""
        round.carry = SharedWork()

    def wave(self, round: Round, members: Sequence[Member]) -> Instructions:
        """Share out the wave's local steps by weight, and tell each client its load."""
        ids = [member.client_id for member in members]
        if ids:
            most = round.shared.influence_weight if round.bounds is not None else math.inf
            shared = loads([self._doublings.get(i, 0) for i in ids], self.local_steps, most)
            round.carry.loads |= zip(ids, shared, strict=True)
        return Instructions(each={i: {"local-steps": round.carry.loads[i], "local-epochs": 0} for i in ids})

    def add(self, round: Round, reply: Reply) -> None:
        """Take in a local model, and whether its client's target is met.

        Raises:
            Refused: for a claim that is not 0 or 1, or a model that does not fit.
        """
        work, client = round.carry, reply.member.client_id
        satisfied = reply.claim(SATISFIED)
        if satisfied not in (0, 1):
            raise Refused(f"{SATISFIED} = {satisfied} is not allowed: 0 or 1")
        round.sum.add(reply.arrays, load_of(round, reply) * reply.counts)
        work.satisfied[client] = bool(satisfied)

    def update(self, round: Round) -> Model:
        """Return the average weighted by local steps; double unsatisfied clients' weights.

        The number for the history is the share of joiners that are satisfied.
        """
        satisfied: dict[str, bool] = round.carry.satisfied
        for client, met in satisfied.items():
            self._doublings[client] = self._doublings.get(client, 0) + (not met)
        round.metrics["satisfied"] = sum(satisfied.values()) / round.sum.count
        return super().update(round)

    def carried(self) -> dict[str, Any]:
        """Return log2 of the weights."""
        return {_WEIGHTS: {"clients": list(self._doublings), "doublings": list(self._doublings.values())}}

    def take_up(self, carried: Mapping[str, Mapping[str, Any]]) -> None:
        """Take up the weights."""
        weights = carried[_WEIGHTS]
        self._doublings = dict(zip(weights["clients"], weights["doublings"], strict=True))
