"""FedALIGN's small objects: its survey, how influence is bounded, and who asks for priority."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from fedappeal.core.algorithm import Priority
from fedappeal.protocol import keys
from fedappeal.settings.config import RunConfig, Scalar
from strategies.fedalign.alignment import Statement
from strategies.rounds.algorithm import Influence, Survey
from strategies.rounds.exchange.members import Member
from strategies.rounds.round import Reply, Round, claim

PRIORITY = "priority"
"""TRAIN: whether the server grants priority to this client; a joined reply: as granted."""
CLAIMS_DO_NOT_COUNT = (
    "influence = 'bounded': no client has priority because it says so (the client-ids, by commas; or influence = off)"
)


class PrioritySurvey(Survey):
    """The priority clients measure each model first, so that F(w) is known."""

    @classmethod
    def needed(cls, settings: Any) -> bool:
        """Return whether they do."""
        return bool(settings.global_loss == "fresh")

    def asked(self, round: Round, order: Sequence[Member]) -> Sequence[Member]:
        """Return the priority clients, where F(w) has to be known."""
        first, has_priority = order[: round.wanted(len(order))], self.algorithm.has_priority
        if self.settings.global_loss == "stale" or all(has_priority(round, member) for member in first):
            return []
        return [member for member in order if has_priority(round, member)]

    def answered(self, round: Round, member: Member, metrics: Mapping[str, Any]) -> None:
        """Take in one F_k."""
        on_error = self.settings.match_on == "error"
        metric = round.metric
        score = claim(metrics, metric.name, metric.low, metric.high) if on_error else math.nan
        loss = metric.error(score) if on_error else claim(metrics, keys.LOSS)
        round.carry.surveyed.append(Statement(loss, int(claim(metrics, keys.NUM_EXAMPLES))))
        round.carry.answers.append(metrics)


class PriorityInfluence(Influence):
    """Clients are compared by their data; only those with priority move the model."""

    @classmethod
    def lack(cls, config: RunConfig, settings: Any) -> str:
        """Return that the operator has to say which clients have priority, where no setting does."""
        lack = f"fedalign.priority-ids = '' is not allowed with {CLAIMS_DO_NOT_COUNT}"
        return "" if settings.priority_ids else lack

    def moves_model(self, round: Round, member: Member) -> bool:
        """Whether a client has priority: without one, no round can move the model."""
        return self.algorithm.has_priority(round, member) is not False

    def log_weight(self, round: Round, reply: Reply) -> float:
        """Return the logarithm of D_k."""
        return math.log(reply.num_examples)


class Granted(Priority):
    """The server grants priority to clients that ask for it, or that a setting lists."""

    def granted(self, told: Mapping[str, Scalar]) -> bool | None:
        """Return whether TRAIN grants a client priority.

        None where TRAIN does not say: there was no roll call.
        """
        return bool(told[PRIORITY]) if PRIORITY in told else None

    def asks(self, client: int, clients: int) -> bool:
        """Whether a client of a task asks for priority: the first ``priority-clients`` do."""
        asked = self.settings.priority_clients
        return 0 <= client < (-(-clients // 2) if asked < 0 else asked)
