r"""Per-FedAvg: a global model that serves each client well after one step on its own data.

Fallah, Mokhtari, Ozdaglar: "Personalized Federated Learning with Theoretical Guarantees: A Model-Agnostic
Meta-Learning Approach". NeurIPS 2020. The problem (equation 3) is::

    min_w  1/n sum_i f_i(w - alpha grad f_i(w))

Clients descend on their own term (rule ``maml`` of `client.personalised`), and the server averages the models of the
clients of the round, each with the same weight (Algorithm 1): ``w <- 1/(r n) sum_i w_i``.
"""

from typing import Literal, Unpack

from flwr.app import ArrayRecord

from fedappeal.protocol import keys
from fedappeal.protocol.config import ConfigError, Scalar
from strategies.fold import WeightedSum
from strategies.replies import TrainReply
from strategies.shared import Shared
from strategies.volunteers import VolunteerStrategy


class PerFedAvg(VolunteerStrategy):
    """Per-FedAvg's server, among volunteers: the average runs over those who joined.

    Args:
        maml_learning_rate: alpha, the inner step; beta is the run's local learning rate.
        maml_order: ``second``, or ``first`` for FO, which leaves the Hessian out.
        adaptation_steps: steps of alpha after which clients evaluate the model a second time; 0: they do not.
        shared: settings that all strategies share.

    Raises:
        ConfigError: for a setting that is not allowed.
    """

    local_rule = "maml"

    def __init__(
        self,
        *,
        maml_learning_rate: float = 0.01,
        maml_order: Literal["first", "second"] = "second",
        adaptation_steps: int = 1,
        **shared: Unpack[Shared],
    ) -> None:
        super().__init__(**shared)
        if not maml_learning_rate > 0:
            raise ConfigError(f"maml-learning-rate = {maml_learning_rate} is not allowed: more than 0")
        if maml_order not in ("first", "second"):
            raise ConfigError(f"maml-order = '{maml_order}' is not allowed: first, second")
        if adaptation_steps < 0:
            raise ConfigError(f"adaptation-steps = {adaptation_steps} is not allowed: at least 0")
        self.maml_learning_rate = maml_learning_rate
        self.maml_order = maml_order
        self.adaptation_steps = adaptation_steps

    def train_settings(self) -> dict[str, Scalar]:
        """Tell clients alpha and the order."""
        return {"maml-learning-rate": self.maml_learning_rate, "maml-order": self.maml_order}

    def evaluate_settings(self) -> dict[str, Scalar]:
        """Have the model judged as it is sent, and once more after each client adapted it."""
        return {keys.ADAPTATION_STEPS: self.adaptation_steps, "maml-learning-rate": self.maml_learning_rate}

    def weight(self, reply: TrainReply) -> float:
        """Return 1: the paper's average does not count examples."""
        return 1.0

    def update(self, folded: WeightedSum) -> tuple[ArrayRecord, dict[str, float]]:
        """Return the average of the models."""
        return folded.combine(keep=0.0, scale=1.0 / folded.count), {}
