"""The policy of ADA-GD's rational agents: leave for good once the loss is low enough.

"On the Effect of Defection in Federated Learning and How to Prevent It", section 2: an agent leaves, satisfied, once
``F_m(w) <= epsilon``.
"""

from pydantic import Field

from fedappeal.core.plugins import PluginSettings
from fedappeal.core.policy import Policy, Situation
from fedappeal.protocol.keys import Decision
from fedappeal.settings.config import Positive

DEFAULT = 0.3
"""The loss at which a client leaves where neither its owner nor the run's strategy names one."""


class Defect(Policy):
    """Leave for good, satisfied, once the loss is at most ``leave-below``."""

    name = "defect"
    can_leave = True

    class Settings(PluginSettings):
        """The policy's settings."""

        leave_below: Positive | None = Field(
            None, description="the loss at which the client leaves; not set: the strategy's precision, else 0.3"
        )

    def decide(self, situation: Situation) -> Decision:
        """Return that the client leaves where its loss is low enough, else that it joins."""
        leave_below = self.settings.leave_below
        limit = float(situation.told.get("precision", DEFAULT)) if leave_below is None else leave_below
        return Decision.LEFT if situation.loss <= limit else Decision.JOINED
