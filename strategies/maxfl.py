r"""MaxFL: maximise the number of clients to whom the global model appeals.

Cho, Jhunjhunwala, Li, Smith, Joshi: "Maximizing Global Model Appeal in Federated Learning". TMLR 2024.

Each client k weights its update by how winnable it is (equation 4)::

    q_k(w) = (1 - s) s,   s = sigmoid(F_k(w) - rho_k)

and the server moves by the weighted updates ``delta_k = w_k^(tau) - w`` (equations 5 and 6)::

    w <- w + eta_g * sum_k q_k delta_k / (sum_k q_k + epsilon)

Two slips of the paper are resolved: Algorithm 1, line 8 prints ``q_k = sigma(F_k - rho_k)``, which is not the
gradient's weight of equation 4; and Section 3 and Algorithm 1 give delta opposite signs, of which only the one
above lowers the loss.
"""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from client.training.measured import Measured
from fedappeal.protocol import keys
from fedappeal.protocol.config import CountOrZero, Positive, Scalar
from strategies.rounds.algorithm import Claims, StrategySettings
from strategies.rounds.round import Round
from strategies.rounds.strategy import Strategy

if TYPE_CHECKING:
    from flwr.app import ArrayRecord

    from strategies.rounds.replies import Reply

APPEAL_WEIGHT = "appeal-weight"
"""What a joined client reports: its q_k."""


def appeal_weight(loss: float, requirement: float) -> float:
    """Weight of a client's update, q_k of equation 4.

    Args:
        loss: F_k(w), the client's training loss of the global model.
        requirement: rho_k, the loss it requires.

    Returns:
        ``s (1 - s)`` with ``s = sigmoid(loss - requirement)``: in [0, 0.25], largest where the two are equal,
        symmetric in their gap, and 0 (never NaN) for gaps too large to tell.
    """
    decay = math.exp(-abs(loss - requirement))
    return min(0.25, decay / (1.0 + decay) ** 2)  # rounding can give a hair more, which the server would refuse


class MaxFL(Strategy):
    """MaxFL (Cho et al., TMLR 2024): weights clients by how winnable they are."""

    name = "maxfl"
    only_sums = True
    compares_losses = True
    weight_claim = APPEAL_WEIGHT
    from_run: ClassVar[Mapping[str, str]] = {"tuning_steps": "tuning-steps"}

    class Settings(StrategySettings):
        """MaxFL's settings."""

        server_lr: Positive = Field(1.0, description="eta_g, the server's learning rate")
        stabilizer: Positive = Field(1e-3, description="epsilon in the denominator")
        tuning_steps: CountOrZero | None = Field(
            None, description="fine-tuning steps before q_k is computed (Table 4); not set: tuning-steps of the run"
        )

    settings: Settings

    def tuning_steps(self) -> int:
        """Return the fine-tuning steps before a client computes its weight."""
        return self.settings.tuning_steps or 0

    def report(self, measured: Measured) -> Claims:
        """Return the client's q_k."""
        return {APPEAL_WEIGHT: appeal_weight(measured.loss, measured.rho)}

    def weight(self, reply: "Reply") -> float:
        """Return the q_k that the client reported.

        Raises:
            Refused: outside [0, 0.25].
        """
        return reply.claim(APPEAL_WEIGHT, 0.0, 0.25)

    def update(self, round: Round) -> "ArrayRecord":
        """Move along the weighted updates: ``(1 - eta Q) w + eta sum q_k w_k``, ``eta = eta_g / (Q + epsilon)``."""
        total = round.claimed_weight  # Q: bounds change the clients' shares of it, not the step
        step = self.settings.server_lr / (total + self.settings.stabilizer)
        round.metrics["appeal_weight"] = total
        share = total / round.sum.weight if round.sum.weight else 1.0
        return round.sum.combine(keep=1.0 - step * total, scale=step * share)

    def evaluation_settings(self) -> dict[str, Scalar]:
        """Let each client judge the model as it would use it: after the same fine-tuning."""
        return {keys.TUNING_STEPS: self.tuning_steps()}
