"""Policies that belong to no algorithm."""

from fedappeal.core.plugins import PluginSettings
from fedappeal.core.policy import Policy, Situation
from fedappeal.protocol.keys import Decision
from fedappeal.settings.config import Count, NonNegative


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


def stays_at(now: float, before: float, rounds: int, horizon: int) -> float:
    """Return the loss that a straight line gives ``horizon`` rounds from now.

    Args:
        now: the loss today.
        before: the loss some rounds ago.
        rounds: how many, at least 1.
        horizon: rounds to look ahead.
    """
    return now - horizon * (before - now) / rounds


class Anticipate(Policy):
    """Leave for good once training on alone promises a lower loss than staying.

    ADA-GD's agents leave once their loss is low enough, whatever they could still gain. This policy compares two
    estimates of its loss ``horizon`` = H rounds from now, both on the test data that it holds out::

        L(t)  = loss of the model that was sent in round t
        stay  = L(t) - H * (L(s) - L(t)) / (t - s),  s: the window-th last round before
        alone = loss after H rounds' worth of its own local steps from that model, by plain SGD

    It leaves for good where ``alone + margin < stay``. Before it was asked in ``window`` earlier rounds, or where a
    number is NaN, it joins. ``stay`` is on a straight line, which is too hopeful where the loss flattens out;
    ``alone`` is measured, not guessed. Minibatches of the training alone are the same in each round.

    The client's cost: from round ``window + 1`` on H rounds' worth of training in each round that it is asked,
    besides its round, and two evaluations of its held-out data. Choosing by the same data by which a client is
    evaluated makes its own model look a little better there than it is.
    """

    name = "anticipate"
    needs_history = True
    looks_ahead = True
    needs_loss = False
    can_leave = True

    class Settings(PluginSettings):
        """The policy's settings."""

        horizon: Count = 5
        """rounds that it looks ahead; it trains as many alone, each time"""
        window: Count = 5
        """earlier rounds over which it sees its loss fall"""
        margin: NonNegative = 0.0
        """by how much loss leaving must be better"""

    def decide(self, situation: Situation) -> Decision:
        """Return that the client leaves where training on alone promises more, else that it joins."""
        settings, outlook = self.settings, situation.outlook
        past = situation.history[-settings.window :]
        if outlook is None or len(past) < settings.window:
            return Decision.JOINED
        rounds = situation.server_round - past[0].server_round
        stay = stays_at(outlook.held_out().loss, past[0].held_out, rounds, settings.horizon)
        return Decision.LEFT if outlook.alone(settings.horizon).loss + settings.margin < stay else Decision.JOINED
