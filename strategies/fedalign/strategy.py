r"""FedALIGN: train for the priority clients; others help while their losses match.

"Prioritized Federated Learning: Leveraging Non-Priority Clients for Targeted Model Improvement". Anonymous
authors, under double-blind review: Algorithm 1, equations 5 to 8 (the mathematics: `strategies.fedalign.alignment`).

The objective is that of the priority clients P alone (equation 5)::

    F(w) = sum_{k in P} p_k F_k(w),   p_k = D_k / sum_{i in P} D_i

A priority client always trains. Another one trains only if the model suits it, and the server takes its update
only if the model does not suit it much better than P (Algorithm 1)::

    the client joins:    F_k(w_t) <= F(w_t) + epsilon_t
    the server accepts:  F_k(w_t) >= F(w_t) - epsilon_t
    w_{t+E} = (sum_{k in P} p_k w_k + sum_{k accepted} p_k w_k) / (1 + sum_{k accepted} p_k)

Equation 7 prints the condition with ``<``, section 3.1 and Algorithm 1 with ``<=``: the latter is used.
"""

import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from fedappeal.core.requirement import Measured
from fedappeal.protocol import keys
from fedappeal.settings.config import ConfigError, CountOrZero, NonNegative, RunConfig, Share
from fedappeal.settings.rounds import share_of_rounds
from strategies.fedalign.alignment import (
    EPSILON,
    GLOBAL_LOSS,
    AlignedSum,
    Statement,
    epsilon_schedule,
    matched,
    rho,
    theta,
)
from strategies.fedalign.priority import CLAIMS_DO_NOT_COUNT, PRIORITY, Granted, PriorityInfluence, PrioritySurvey
from strategies.rounds.exchange.members import Member
from strategies.rounds.round import KEEP_MODEL, Instructions, Kept, Model, Reply, Round, claim, under_name
from strategies.rounds.strategy import Claims, Strategy, StrategySettings
from strategies.rounds.sums.influence import capped_values
from strategies.rounds.sums.weighted_sum import WeightedSum

log = logging.getLogger("fedappeal")

_CARRIED = "fedalign"


def warmup_rounds(share: float, rounds: int) -> int:
    """Return the number of warm-up rounds: a share of the rounds, rounded up."""
    return math.ceil(share_of_rounds(share, rounds))


def _as_text(ids: str | Iterable[str]) -> str:
    return ids if isinstance(ids, str) else ",".join(ids)


class FedALIGN(Strategy):
    """FedALIGN (anonymous, under review): serves priority clients; others help while their losses match.

    Memory is O(d), whatever the number of clients, but for one case: where a round's clients were told no F(w)
    (Flower's four methods; nothing known yet), the models of non-priority clients are held until the round's end
    and compared with F of its priority replies. With a limit of p_k they are held, too, where no roll call says how
    much data the priority clients have.

    Args:
        epsilon: epsilon_t, a number or a function of the round (from 1). Infinite: FedAvg over all clients; below
            0: FedAvg over the priority clients.
        priority_ids: client-ids with priority, as a text or one by one.
        settings: the others of ``Settings``, and the shared ones.
    """

    name = "fedalign"
    survey, influence, priority = PrioritySurvey, PriorityInfluence, Granted
    policy = "match"
    needs_losses = True
    asks_on = False
    """The paper samples once; clients that stay silent are not replaced."""
    may_refuse = True
    still_open = "which losses a client tells: they decide whose updates are taken, a priority client's for all"
    untold = frozenset({"priority-ids"})

    class Settings(StrategySettings):
        """FedALIGN's settings."""

        priority_clients: Annotated[int, Field(ge=-1)] = -1
        """the first clients, this many of them, ask for priority; -1: half of them"""
        priority_ids: Annotated[str, BeforeValidator(_as_text)] = ""
        """client-ids or key fingerprints (key-...) with priority, by commas; empty: clients that ask"""
        epsilon: float = 0.2
        """how close a non-priority client's loss must be to F; below 0: none is"""
        epsilon_schedule: Literal["constant", "linear", "exponential", "step"] = "constant"
        """epsilon over the rounds; linear: to 0 at the last one"""
        epsilon_decay: Annotated[float, Field(gt=0, le=1)] = 0.99
        """factor a round, for epsilon-schedule = exponential"""
        epsilon_drop: Share = 0.5
        """share of the rounds after which epsilon is 0, for epsilon-schedule = step"""
        warmup_share: Share = 0.1
        """share of the rounds with priority clients only"""
        warmup_rounds: CountOrZero | None = None
        """their number; not set: by the share"""
        match_on: Literal["loss", "error"] = "loss"
        """what is compared; error: of the task's metric, 1 - accuracy"""
        global_loss: Literal["fresh", "stale"] = "fresh"
        """F of the model that is sent (one more exchange), or of the one before"""
        max_non_priority_weight: Annotated[NonNegative, BeforeValidator(lambda most: most or 0.0)] = 0.0
        """most a non-priority client's p_k may be; 0: no limit, as in the paper"""

    settings: Settings

    def __init__(self, *, epsilon: float | Callable[[int], float] | None = None, **settings: Any) -> None:
        number = {} if epsilon is None or callable(epsilon) else {"epsilon": epsilon}
        super().__init__(**number, **settings)
        self._epsilon = epsilon if callable(epsilon) else None
        self._priority_ids = frozenset(filter(None, map(str.strip, self.settings.priority_ids.split(","))))
        self._last_loss: float | None = None
        self._thetas, self._updates = 0.0, 0

    @classmethod
    def check_run(cls, config: RunConfig, settings: Any) -> None:
        """Refuse more priority clients than there are, and an unfit epsilon.

        Raises:
            ConfigError: names the setting.
        """
        if settings.priority_clients > config.clients:
            raise ConfigError(
                f"fedalign.priority-clients = {settings.priority_clients} is not allowed: "
                f"at most clients = {config.clients}"
            )
        if not math.isfinite(settings.epsilon):
            raise ConfigError(f"fedalign.epsilon = {settings.epsilon} is not allowed: a finite number")

    @classmethod
    def notes(cls, config: RunConfig, settings: Any) -> list[str]:
        """Return how long the run warms up."""
        number = settings.warmup_rounds
        rounds = warmup_rounds(settings.warmup_share, config.scheduled_rounds) if number is None else number
        return [f"{rounds} of warm-up"]

    # -- what is carried from round to round ---------------------------------------------------------

    def carried(self) -> dict[str, Any]:
        """Return F of the last model, and the sum behind theta's mean."""
        loss = {} if self._last_loss is None else {"global-loss": self._last_loss}
        return {_CARRIED: {"thetas": self._thetas, "updates": self._updates, **loss}}

    def take_up(self, carried: Mapping[str, Mapping[str, Any]]) -> None:
        """Take up what was carried."""
        values = carried[_CARRIED]
        self._thetas, self._updates = float(values["thetas"]), int(values["updates"])
        self._last_loss = float(values["global-loss"]) if "global-loss" in values else None

    # -- which clients have priority, and which are asked --------------------------------------------

    def has_priority(self, round: Round, member: Member) -> bool | None:
        """Return whether a client has priority.

        It is as listed, else as granted or as it asked. None where it is not known.
        """
        if self._priority_ids:
            return not self._priority_ids.isdisjoint((member.client_id, member.key_id))
        if round.shared.influence == "bounded":  # a client's own claim does not count
            return member.node_id in round.granted_nodes
        return member.priority if member.enrolled else None

    def epsilon_of(self, round: Round) -> float:
        """Return epsilon_t.

        Raises:
            ConfigError: where it is not a number.
        """
        settings = self.settings
        epsilon_t = self._epsilon or epsilon_schedule(
            settings.epsilon_schedule,
            settings.epsilon,
            round.num_rounds,
            settings.epsilon_decay,
            settings.epsilon_drop,
        )
        epsilon = float(epsilon_t(round.number))
        if math.isnan(epsilon):
            raise ConfigError(f"epsilon = {epsilon} in round {round.number} is not allowed: a number")
        return epsilon

    def warms_up(self, round: Round) -> bool:
        """Whether only priority clients count in a round.

        Raises:
            ConfigError: for a share of a number of rounds that is not known.
        """
        share, rounds = self.settings.warmup_share, self.settings.warmup_rounds
        if rounds is not None:
            return round.number <= rounds
        if share and not round.num_rounds:
            raise ConfigError(
                f"warmup-share = {share} is not allowed without start, which knows the number of rounds: "
                "0, or warmup_rounds"
            )
        return round.number <= warmup_rounds(share, round.num_rounds)

    def pool(self, round: Round) -> list[Member]:
        """Return the clients that the round may ask; in warm-up: with priority."""
        clients = super().pool(round)
        if not self.warms_up(round):
            return clients
        return [member for member in clients if self.has_priority(round, member) is not False]

    def begin(self, round: Round) -> None:
        """Begin a round.

        Raises:
            ConfigError: where clients have enrolled and none of them has priority: no round could move the model.
        """
        seen = [round.members.of_client(client) for client in round.members.of_role(keys.SEEN)]
        enrolled = [member for member in seen if member and member.enrolled]
        if enrolled and not any(self.has_priority(round, member) for member in enrolled):
            ids, none = ",".join(sorted(self._priority_ids)), f"none of the {len(enrolled)} clients that enrolled"
            if ids:
                raise ConfigError(f"fedalign.priority-ids = '{ids}' is not allowed: {none} has such a client-id")
            if round.shared.influence == "bounded":
                raise ConfigError(f"fedalign.priority-ids = '' is not allowed with {CLAIMS_DO_NOT_COUNT}")
            raise ConfigError(f"fedalign.priority-clients: {none} asks for priority; at least one has to")
        most = self.settings.max_non_priority_weight or None
        sums = WeightedSum(round.model), WeightedSum(round.model)
        outlier = round.shared.influence_weight if round.bounds is not None else None
        round.carry = AlignedSum(*sums, self.epsilon_of(round), self.warms_up(round), most, outlier)

    # -- F(w), and what clients are told -------------------------------------------------------------

    def wave(self, round: Round, members: Sequence[Member]) -> Instructions:
        """Settle F(w) and the priority clients' data; tell F(w), epsilon_t and priority."""
        now: AlignedSum = round.carry
        if not now.warming:  # in warm-up there is no client that F(w) concerns
            now.told = self._last_loss if self.settings.global_loss == "stale" else now.loss_of(now.surveyed)
        counts = [m.num_examples for m in members if m.enrolled and self.has_priority(round, m)]
        now.expected += sum(counts if now.outlier is None else map(int, capped_values(counts, now.outlier)))
        global_loss = {} if now.told is None else {GLOBAL_LOSS: now.told}
        granted = {m.client_id: self.has_priority(round, m) for m in members}
        to_each = {
            client: under_name(self.name, {PRIORITY: int(has)}) for client, has in granted.items() if has is not None
        }
        return Instructions(under_name(self.name, {EPSILON: now.epsilon, **global_loss}), to_each)

    def report(self, measured: Measured) -> Claims:
        """Return F_k of the model that was sent, and whether the client has priority."""
        return {keys.LOSS: matched(measured.evaluation, measured.told), PRIORITY: int(measured.priority)}

    # -- what comes back -----------------------------------------------------------------------------

    def add(self, round: Round, reply: Reply) -> None:
        """Take a priority client's update in; match another's.

        Raises:
            Refused: for a claim that is not allowed, or another layout.
        """
        priority = self.has_priority(round, reply.member)
        if priority is None:
            priority = reply.claim(PRIORITY, 0, 1) == 1
        bounds = round.metric.error_bounds if self.settings.match_on == "error" else (-math.inf, math.inf)
        statement = Statement(reply.claim(keys.LOSS, *bounds), max(1, int(reply.num_examples * reply.counts + 0.5)))
        if priority:
            round.carry.add_priority(reply.arrays, statement)
        else:
            round.carry.add_other(reply.member.client_id, reply.arrays, statement)

    def summarise(self, round: Round, answers: Sequence[tuple[Member, Mapping[str, Any]]]) -> dict[str, float]:
        """Return the averages over all clients, and over the priority clients' pooled data."""
        seen = [(member, metrics) for member, metrics in answers if member.role == keys.SEEN]
        served = [metrics for member, metrics in seen if self.has_priority(round, member)]
        score = f"priority_{round.metric.column}"
        figures = {score: pooled(served, round.metric.name), "priority_loss": pooled(served, keys.LOSS)}
        return super().summarise(round, answers) | {
            name: value for name, value in figures.items() if value is not None
        }

    def finish(self, round: Round) -> Model | Kept:
        """Return Algorithm 1's next model; the model stays where no priority client joined."""
        now: AlignedSum = round.carry
        record, numbers = round.record, round.metrics
        model, accepted = now.close()
        sat_out = [round.members.of_client(client) for client, was in record.decisions.items() if was == "sat-out"]
        numbers |= {
            "priority_joined": len(now.priority),
            "accepted": len(now.accepted),
            "silent": sum(not (member and self.has_priority(round, member)) for member in sat_out),
            "refused": len(now.refused),
            "epsilon": now.epsilon,
        }
        measured = now.loss_of(now.priority)
        if (global_loss := measured if now.told is None else now.told) is not None:
            numbers["global_loss"] = global_loss
        if (training := pooled(now.answers, keys.LOSS)) is not None:
            numbers["priority_train_loss"] = training
        if measured is None:
            log.info("round %d: no priority client joined, the model stays as it is", round.number)
        else:
            self._last_loss = measured
            self._thetas, self._updates = self._thetas + theta(accepted), self._updates + 1
            mean = self._thetas / self._updates
            numbers |= {"theta": theta(accepted), "rho": rho(accepted), "theta_mean": mean, "rho_mean": 1.0 - mean}
        record.decisions |= dict.fromkeys(now.refused, "refused")
        return KEEP_MODEL if model is None else model


def pooled(answers: Iterable[Mapping[str, Any]], key: str) -> float | None:
    """Return a measure on all clients' examples together.

    None where no client reports it.
    """
    claims = [(claim(metrics, key), claim(metrics, keys.NUM_EXAMPLES)) for metrics in answers if key in metrics]
    examples = sum(count for _, count in claims)
    return sum(value * (count / examples) for value, count in claims) if claims else None
