"""Mine: a client joins while the model meets its requirement, and otherwise looks at it again now and then.

Try it, and run it::

    fedappeal check mine:Mine
    fedappeal simulate --participation mine:Mine --set mine.rest=2 --mandatory-rounds 0 --clients 4 --rounds 12
"""

from pydantic import Field

from fedappeal.core.plugins import PluginSettings
from fedappeal.core.policy import Policy, Situation
from fedappeal.protocol.keys import Decision
from fedappeal.settings.config import Count


class Mine(Policy):
    """Mine: join where the requirement is met, and after some rounds of rest."""

    mandatory = True  # it heeds rounds in which the server asks clients not to sit out
    needs_history = True  # the client keeps its past, also across a restart

    # Each setting has a default and a description; `fedappeal list mine:Mine` shows them.
    class Settings(PluginSettings):
        """Settings of Mine."""

        rest: Count = Field(3, description="rounds in a row that the client sits out at most")

    # situation.history is the memory: what is kept in self is lost when the client restarts.
    def decide(self, situation: Situation) -> Decision:
        """Return whether the client joins this round."""
        last = situation.history[-self.settings.rest :]
        rested = len(last) == self.settings.rest and all(past.decision is Decision.SAT_OUT for past in last)
        join = situation.mandatory or situation.met or rested
        return Decision.JOINED if join else Decision.SAT_OUT
