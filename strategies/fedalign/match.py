"""FedALIGN's policy: join while the model suits the client (Algorithm 1)."""

from fedappeal.core.policy import Policy, Situation
from fedappeal.protocol.keys import Decision
from strategies.fedalign.alignment import joins
from strategies.fedalign.strategy import EPSILON, GLOBAL_LOSS, matched


class Match(Policy):
    """Join with priority, or while ``F_k(w) <= F(w) + epsilon``; without a known F(w), join."""

    name = "match"

    def decide(self, situation: Situation) -> Decision:
        """Return that the client joins where it has priority or the model suits it."""
        values = situation.told
        if situation.priority or GLOBAL_LOSS not in values:
            return Decision.JOINED
        suits = joins(matched(situation.evaluation, values), float(values[GLOBAL_LOSS]), float(values[EPSILON]))
        return Decision.JOINED if suits else Decision.SAT_OUT
