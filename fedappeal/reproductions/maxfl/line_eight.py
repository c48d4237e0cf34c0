"""MaxFL by Algorithm 1, line 8, as printed: ``q_k = sigmoid(F_k - rho_k)``.

Equation 4 has another weight.
"""

import math

from fedappeal.core.requirement import Measured
from strategies.maxfl import APPEAL_WEIGHT, MaxFL
from strategies.rounds.round import Reply
from strategies.rounds.strategy import Claims


class LineEight(MaxFL):
    """MaxFL in which a client counts the more, the farther the model is from what it requires."""

    name = "maxfl-line-8"

    def report(self, measured: Measured) -> Claims:
        """Return the client's sigmoid of its gap."""
        return {APPEAL_WEIGHT: 0.5 + 0.5 * math.tanh((measured.judged.loss - measured.rho) / 2)}

    def weight(self, reply: Reply) -> float:
        """Return the weight that the client reported.

        Raises:
            Refused: outside [0, 1].
        """
        return reply.claim(APPEAL_WEIGHT, 0.0, 1.0)
