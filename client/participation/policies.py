"""Policies that belong to no algorithm."""

from fedappeal.core.policy import Policy, Situation
from fedappeal.protocol.keys import Decision


class Always(Policy):
    """Join every round: the assumption of ordinary federated learning."""

    name = "always"
    needs_loss = False

    def decide(self, situation: Situation) -> Decision:
        """Return that the client joins."""
        return Decision.JOINED


class Appeal(Policy):
    """Sit out while the global model does not meet the client's own requirement.

    Appeal-based flexible participation of MaxFL (Cho et al., TMLR 2024, section 3): after the mandatory rounds a
    client sits out while the global model is no better than what it trained alone, ``F_k(w) >= rho_k``.
    """

    name = "appeal"
    mandatory = True

    def decide(self, situation: Situation) -> Decision:
        """Join where the round is mandatory or the model appeals; NaN never does."""
        return Decision.JOINED if situation.mandatory or situation.met else Decision.SAT_OUT
