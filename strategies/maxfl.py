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
from typing import Unpack

from flwr.app import ArrayRecord

from fedappeal.protocol import keys
from fedappeal.protocol.config import Scalar
from strategies.fold import WeightedSum
from strategies.replies import TrainReply, claim
from strategies.shared import Shared, check
from strategies.volunteers import VolunteerStrategy


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


class MaxFL(VolunteerStrategy):
    """MaxFL's server.

    Args:
        server_lr: eta_g.
        stabilizer: epsilon in the denominator of the adaptive server learning rate.
        tuning_steps: local fine-tuning steps before a client computes its weight, and at evaluation (Table 4).
        shared: settings that all strategies share.

    Raises:
        ConfigError: for a setting that is not allowed.
    """

    def __init__(
        self,
        *,
        server_lr: float = 1.0,
        stabilizer: float = 1e-3,
        tuning_steps: int = 0,
        **shared: Unpack[Shared],
    ) -> None:
        super().__init__(**shared)
        check(
            ("server-lr", server_lr, 0 < server_lr < math.inf, "more than 0, and finite"),
            ("stabilizer", stabilizer, 0 < stabilizer < math.inf, "more than 0, and finite"),
            ("tuning-steps", tuning_steps, tuning_steps >= 0, "at least 0"),
        )
        self.server_lr = server_lr
        self.stabilizer = stabilizer
        self.tuning_steps = tuning_steps

    def train_settings(self) -> dict[str, Scalar]:
        """Ask each client for its weight."""
        return {keys.TUNING_STEPS: self.tuning_steps}

    def evaluate_settings(self) -> dict[str, Scalar]:
        """Let each client judge the model as it would use it."""
        return {keys.TUNING_STEPS: self.tuning_steps}

    def weight(self, reply: TrainReply) -> float:
        """Return the q_k that the client reported.

        Raises:
            Refused: outside [0, 0.25].
        """
        return claim(reply.metrics, keys.APPEAL_WEIGHT, 0.0, 0.25)

    def update(self, folded: WeightedSum) -> tuple[ArrayRecord, dict[str, float]]:
        """Move along the weighted updates: ``(1 - eta Q) w + eta sum q_k w_k``, ``eta = eta_g / (Q + epsilon)``."""
        step = self.server_lr / (folded.weight + self.stabilizer)
        return folded.combine(keep=1.0 - step * folded.weight, scale=step), {"appeal_weight": folded.weight}
