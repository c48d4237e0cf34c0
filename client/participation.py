"""How a client decides whether to join a round: one small pure policy per paper.

* ``always``: the assumption of ordinary federated learning.
* ``appeal``: MaxFL's appeal-based flexible participation (Cho et al., section 3): after the mandatory rounds a
  client sits out while the global model is no better than what it trained alone, ``F_k(w) >= rho_k``.
* ``match``: FedALIGN's loss matching (Algorithm 1): a non-priority client joins only if the model already suits it,
  ``F_k(w) <= F(w) + epsilon``; a priority client always joins.
* ``defect``: ADA-GD's rational agents (section 2): a client leaves for good once ``F_m(w) <= epsilon``.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from fedappeal.protocol.keys import Decision
from strategies.alignment import joins


@dataclass(frozen=True)
class Situation:
    """What a client knows when it decides.

    Attributes:
        loss: F_k(w), the training loss of the model that was sent, measured as ``loss-mode`` says.
        requirement: rho_k.
        mandatory: whether this round asks clients not to opt out, and the client accepts that.
        priority: whether the client is served with priority.
        measure: what FedALIGN compares: F_k(w), or 1 - accuracy.
        global_loss: F(w), measured likewise; None where none was sent.
        epsilon: how far measure may lie above it.
        precision: ADA-GD's epsilon.
    """

    loss: float
    requirement: float
    mandatory: bool
    priority: bool = False
    measure: float = math.nan
    global_loss: float | None = None
    epsilon: float = 0.0
    precision: float = 0.0


Policy = Callable[[Situation], Decision]


def always(situation: Situation) -> Decision:
    """Join every round."""
    return Decision.JOINED


def appeal(situation: Situation) -> Decision:
    """Join where the round is mandatory or the model appeals, ``F_k(w) < rho_k``; a NaN loss never appeals."""
    if situation.mandatory or situation.loss < situation.requirement:
        return Decision.JOINED
    return Decision.SAT_OUT


def match(situation: Situation) -> Decision:
    """Join with priority, or where the model suits this client as well as those with priority."""
    if situation.priority or situation.global_loss is None:
        return Decision.JOINED
    suits = joins(situation.measure, situation.global_loss, situation.epsilon)
    return Decision.JOINED if suits else Decision.SAT_OUT


def defect(situation: Situation) -> Decision:
    """Leave for good, satisfied, once the loss is at most the precision."""
    return Decision.LEFT if situation.loss <= situation.precision else Decision.JOINED


POLICIES: dict[str, Policy] = {"always": always, "appeal": appeal, "match": match, "defect": defect}
