r"""FedNova: updates are divided by their numbers of local steps before they are averaged.

Wang, Liu, Liang, Joshi, Poor: "Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization".
NeurIPS 2020. Where clients take different numbers of steps, FedAvg's fixed point is another objective's: the clients
with more steps count twice. After the authors' program (github.com/JYWa/FedNova), over the clients that joined::

    p_i    =  n_i / sum_j n_j
    tau    =  sum_i p_i |a_i|                        the effective number of steps
    w      <- w + tau sum_i p_i (w_i - w) / |a_i|

``|a_i|`` is how far unit gradients would move client i: its tau_i steps of plain SGD; with momentum rho
``sum_{t=1}^{tau_i} (1 - rho^t) / (1 - rho)``. With the same number for all clients this is FedAvg.

With ``influence = bounded`` the updates ``(w_i - w) / |a_i|`` have bounds, and tau follows from the examples that
count.

The server works tau_i out of the run's settings and of the examples that the client says it has (epochs of n_i steps
over the batch size), which it needs for p_i anyway. The paper's proximal steps and its server momentum are left out.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from pydantic import Field

from fedappeal.settings.config import ConfigError, RunConfig
from strategies.rounds.algorithm import Influence
from strategies.rounds.round import Model, Reply, Round
from strategies.rounds.shared import FROM_RUN, CountedSteps
from strategies.rounds.strategy import Strategy


def local_norm(steps: int, momentum: float) -> float:
    """Return ``|a_i|``: how far unit gradients move a model in ``steps`` steps of size 1."""
    if momentum == 0:
        return float(steps)
    return (steps - momentum * (1 - momentum**steps) / (1 - momentum)) / (1 - momentum)


@dataclass
class Effort:
    """One round: ``sum n_i`` and ``sum n_i |a_i|`` over its joiners."""

    examples: float = 0.0
    steps: float = 0.0


class NormalisedInfluence(Influence):
    """Clients are compared by p_i, and by updates that are divided by |a_i|."""

    def log_weight(self, round: Round, reply: Reply) -> float:
        """Return ``log n_i``: p_i is the client's weight among updates that are divided by |a_i|."""
        return math.log(reply.num_examples)

    def update_unit(self, round: Round, reply: Reply) -> float:
        """Return |a_i|."""
        norm: float = self.algorithm.local_norm(int(reply.num_examples))
        return norm


class FedNova(Strategy):
    """FedNova (Wang et al., NeurIPS 2020): updates count per local step.

    So more steps give no more say.
    """

    name = "fednova"
    refuses_batch_norm = True
    influence = NormalisedInfluence
    still_open = "with epochs, a client that claims more examples lengthens the step of all by its share"
    from_run: ClassVar[Mapping[str, str]] = {**FROM_RUN, "momentum": "momentum"}
    untold = frozenset(from_run.values())

    class Settings(CountedSteps):
        """FedNova's settings: how clients train, as the run says."""

        momentum: Annotated[float, Field(ge=0, lt=1)] | None = None
        """rho; not set: the run's"""

    settings: Settings

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.settings.check_counted(self.name)

    @classmethod
    def check_run(cls, config: RunConfig, settings: Any) -> None:
        """Refuse local rules other than SGD.

        Raises:
            ConfigError: names the rule.
        """
        if config.local_rule not in ("auto", "sgd"):
            raise ConfigError(
                f"local-rule = '{config.local_rule}' is not allowed with strategy = '{cls.name}': the steps that it "
                "counts are SGD's (auto, sgd)"
            )

    def local_norm(self, examples: int) -> float:
        """Return |a_i| of a client with this many examples, which takes tau_i steps."""
        return local_norm(self.settings.steps(examples), self.settings.momentum or 0.0)

    def begin(self, round: Round) -> None:
        """Begin without a joiner."""
        round.carry = Effort()

    def weight(self, reply: Reply) -> float:
        """Return ``n_i / |a_i|``."""
        return reply.num_examples / self.local_norm(int(reply.num_examples))

    def add(self, round: Round, reply: Reply) -> None:
        """Take in a model, and its client's examples and steps.

        Raises:
            Refused: if the model does not fit.
        """
        super().add(round, reply)
        counted = reply.num_examples * reply.counts
        round.carry.examples += counted
        round.carry.steps += counted * self.local_norm(max(1, int(counted + 0.5)))

    def update(self, round: Round) -> Model:
        """Return ``w + tau sum p_i (w_i - w) / |a_i|``; tau is the number for the history."""
        effort: Effort = round.carry
        round.metrics["effective_steps"] = effective = effort.steps / effort.examples
        scale = effective / effort.examples
        return round.sum.combine(keep=1.0 - scale * round.sum.weight, scale=scale)
