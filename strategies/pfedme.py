r"""pFedMe: a global model near which each client finds a model of its own.

T. Dinh, Tran, Nguyen: "Personalized Federated Learning with Moreau Envelopes". NeurIPS 2020. The problem
(equations 2 and 3) is::

    min_w  1/N sum_i F_i(w),   F_i(w) = min_theta f_i(theta) + lambda/2 |theta - w|^2

Clients descend on their envelope (rule ``moreau`` of `client.personalised`), and the server moves towards the average
of the models w_i of the clients of the round, each with the same weight (Algorithm 1, last line)::

    w <- (1 - beta) w + beta * 1/S sum_i w_i
"""

from typing import Unpack

from flwr.app import ArrayRecord

from fedappeal.protocol import keys
from fedappeal.protocol.config import ConfigError, Scalar
from strategies.fold import WeightedSum
from strategies.replies import TrainReply
from strategies.shared import Shared
from strategies.volunteers import VolunteerStrategy


class PFedMe(VolunteerStrategy):
    """pFedMe's server, among volunteers: the average runs over those who joined.

    Clients evaluate the model as it is sent, and once more their own: K inner steps away from it.

    Args:
        moreau_lambda: lambda, how strongly a client's own model is held near the global one.
        moreau_steps: K, inner steps on one minibatch.
        personal_learning_rate: learning rate of the inner steps; eta is the run's local learning rate.
        server_mixing: beta; 1 is the plain average.
        shared: settings that all strategies share.

    Raises:
        ConfigError: for a setting that is not allowed. Where the inner learning rate times lambda is 2 or more, the
            inner steps move away from their minimum whatever (convex) loss they meet.
    """

    local_rule = "moreau"

    def __init__(
        self,
        *,
        moreau_lambda: float = 15.0,
        moreau_steps: int = 5,
        personal_learning_rate: float = 0.05,
        server_mixing: float = 1.0,
        **shared: Unpack[Shared],
    ) -> None:
        super().__init__(**shared)
        for key, value in (("moreau-lambda", moreau_lambda), ("server-lr", server_mixing)):
            if not value > 0:
                raise ConfigError(f"{key} = {value} is not allowed: more than 0")
        if moreau_steps < 1:
            raise ConfigError(f"moreau-steps = {moreau_steps} is not allowed: at least 1")
        if not 0 < personal_learning_rate * moreau_lambda < 2:
            raise ConfigError(
                f"personal-learning-rate = {personal_learning_rate:g} is not allowed with "
                f"moreau-lambda = {moreau_lambda:g}: more than 0, less than {2 / moreau_lambda:g} (2 / lambda)"
            )
        self.moreau_lambda = moreau_lambda
        self.moreau_steps = moreau_steps
        self.personal_learning_rate = personal_learning_rate
        self.server_mixing = server_mixing

    def _inner_problem(self) -> dict[str, Scalar]:
        return {
            "moreau-lambda": self.moreau_lambda,
            "personal-learning-rate": self.personal_learning_rate,
        }

    def train_settings(self) -> dict[str, Scalar]:
        """Tell clients lambda, K and the inner learning rate."""
        return {**self._inner_problem(), "moreau-steps": self.moreau_steps}

    def evaluate_settings(self) -> dict[str, Scalar]:
        """Have the model judged as it is sent, and once more each client's own, K inner steps away."""
        return {
            **self._inner_problem(),
            keys.LOCAL_RULE: self.local_rule,
            keys.ADAPTATION_STEPS: self.moreau_steps,
        }

    def weight(self, reply: TrainReply) -> float:
        """Return 1: the paper's average does not count examples."""
        return 1.0

    def update(self, folded: WeightedSum) -> tuple[ArrayRecord, dict[str, float]]:
        """Return ``(1 - beta) w + beta * average``."""
        return folded.combine(keep=1.0 - self.server_mixing, scale=self.server_mixing / folded.count), {}
