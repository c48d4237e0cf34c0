"""The base of participation policies: how a client decides whether to join a round.

A policy that belongs to an algorithm stands in that algorithm's folder. Nothing here loads torch or Flower.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

from fedappeal.core.plugins import Plugin
from fedappeal.core.requirement import UNMEASURED, Evaluation, JudgedByDefault
from fedappeal.protocol.keys import Decision
from fedappeal.settings.config import Scalar


@dataclass(frozen=True)
class Past:
    """One earlier round of a client.

    Attributes:
        server_round: its number.
        decision: what the client decided.
        loss: F_k of the model that was sent, NaN where it was not measured.
        held_out: its loss on the client's test data; NaN unless the policy looks ahead.
        wishes: what the policy wished, and each of its behaviours; empty without behaviours.
        mandatory: whether the client was asked not to opt out, and accepted that.
    """

    server_round: int
    decision: Decision
    loss: float
    held_out: float = math.nan
    wishes: tuple[Decision, ...] = ()
    mandatory: bool = False


class Outlook(Protocol):
    """Further evaluations of a client, to look ahead; each costs it time."""

    def held_out(self) -> Evaluation:
        """Return the sent model's evaluation on the client's test data."""

    def alone(self, rounds: int) -> Evaluation:
        """Return the evaluation after some rounds of training alone from this model."""


@dataclass(frozen=True)
class Situation(JudgedByDefault):
    """The facts on which a client decides.

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
        advantage: by how much the model is better than required, in units of the requirement; NaN: not measured.
        outlook: what it may measure to look ahead.
        judged: loss and metrics of the model on what the client judges by, which ``met`` and ``advantage`` compare
            with the requirement: held-out data where ``judge-on = held-out``; None: ``evaluation``.
    """

    server_round: int = 1
    evaluation: Evaluation = UNMEASURED
    requirement: float = 0.0
    met: bool = False
    mandatory: bool = False
    priority: bool = False
    told: Mapping[str, Scalar] = field(default_factory=dict)
    history: tuple[Past, ...] = ()
    advantage: float = math.nan
    outlook: Outlook | None = None
    judged: Evaluation = None  # type: ignore[assignment]

    @property
    def score(self) -> float:
        """The model's score by the task's metric; a classifier's accuracy, in [0, 1]."""
        return self.evaluation.score


class Policy(Plugin):
    """Base of policies: derive from it, and write `decide`."""

    mandatory: ClassVar[bool] = False
    """Whether the policy heeds mandatory rounds and the rule for an empty round."""
    needs_loss: ClassVar[bool] = True
    """Whether the client measures the model before the policy decides."""
    needs_history: ClassVar[bool] = False
    """Whether the policy reads ``situation.history``; else no history is kept."""
    can_leave: ClassVar[bool] = False
    """Whether the policy may leave a run for good."""
    looks_ahead: ClassVar[bool] = False
    """Whether the policy reads ``situation.outlook`` and the past's ``held_out``."""
    owner_alone: ClassVar[tuple[str, ...]] = ()
    """Settings that a run may not set on a device of another owner, as they name files of the device."""

    def decide(self, situation: Situation) -> Decision:
        """Return whether the client joins the round, sits it out, or leaves for good."""
        raise TypeError(f"policy '{self.name}' has no method decide")

    def available(self, seed: int, client_id: str, server_round: int) -> bool:
        """Whether the client answers a round at all.

        It declines others without looking at the model.

        Args:
            seed: the run's.
            client_id: the client.
            server_round: the round, from 1.
        """
        return True

    def wishes(self, situation: Situation) -> tuple[Decision, ...]:
        """Return the wishes of a policy and its behaviours; empty if it has none."""
        return ()

    def check(self) -> None:
        """Check a client before its first round, beyond what its settings tell.

        Raises:
            ConfigError: one line: what is missing.
        """
