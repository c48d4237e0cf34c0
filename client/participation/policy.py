"""The base of participation policies: how a client decides whether to join a round.

A policy that belongs to an algorithm stands in that algorithm's folder. Nothing here loads torch or Flower.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from client.training.measured import UNMEASURED, Evaluation
from fedappeal.protocol.config import Scalar
from fedappeal.protocol.keys import Decision
from fedappeal.protocol.plugins import Plugin


@dataclass(frozen=True)
class Past:
    """One earlier round of a client.

    Attributes:
        server_round: its number.
        decision: what the client decided.
        loss: F_k of the model that was sent, NaN where it was not measured.
    """

    server_round: int
    decision: Decision
    loss: float


@dataclass(frozen=True)
class Situation:
    """What a client knows when it decides.

    Attributes:
        server_round: the round, from 1.
        evaluation: loss and metrics of the model that was sent, on the client's training data; NaN where the policy
            says that it does not need them and nothing else does.
        requirement: rho_k, what the client requires (for a loss: the number to stay below).
        met: whether the model meets the requirement.
        mandatory: whether this round asks clients not to opt out, and the client accepts that.
        priority: whether the client is served with priority.
        told: what the server told about its strategy, by key: its settings, and values of the round.
        history: the client's own earlier rounds of this run, oldest first.
    """

    server_round: int = 1
    evaluation: Evaluation = UNMEASURED
    requirement: float = 0.0
    met: bool = False
    mandatory: bool = False
    priority: bool = False
    told: Mapping[str, Scalar] = field(default_factory=dict)
    history: tuple[Past, ...] = ()

    @property
    def loss(self) -> float:
        """F_k(w), the training loss of the model that was sent, measured as ``loss-mode`` says."""
        return self.evaluation.loss

    @property
    def score(self) -> float:
        """Its value of the task's metric; of a classifier the accuracy, in [0, 1]."""
        return self.evaluation.score


class Policy(Plugin):
    """Base of policies: derive from it, and write `decide`."""

    mandatory: ClassVar[bool] = False
    """Whether mandatory rounds, and the rule for an empty round, mean anything to it."""
    needs_loss: ClassVar[bool] = True
    """Whether it looks at the model before it decides."""
    needs_history: ClassVar[bool] = False
    """Whether it reads ``situation.history``; else none is kept."""
    can_leave: ClassVar[bool] = False
    """Whether it may leave a run for good."""

    def decide(self, situation: Situation) -> Decision:
        """Return whether the client joins the round, sits it out, or leaves for good."""
        raise TypeError(f"policy '{self.name}' has no method decide")
