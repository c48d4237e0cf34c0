"""How a client decides whether to join a round: one small pure policy per paper.

* ``always``: the assumption of ordinary federated learning.
* ``appeal``: MaxFL's appeal-based flexible participation (Cho et al., section 3): after the mandatory rounds a
  client sits out while the global model is no better than what it trained alone, ``F_k(w) >= rho_k``.
"""

from collections.abc import Callable
from dataclasses import dataclass

from fedappeal.protocol.keys import Decision


@dataclass(frozen=True)
class Situation:
    """What a client knows when it decides.

    Attributes:
        loss: F_k(w), the training loss of the model that was sent, in evaluation mode.
        requirement: rho_k.
        mandatory: whether this round asks clients not to opt out, and the client accepts that.
    """

    loss: float
    requirement: float
    mandatory: bool


Policy = Callable[[Situation], Decision]


def always(situation: Situation) -> Decision:
    """Join every round."""
    return Decision.JOINED


def appeal(situation: Situation) -> Decision:
    """Join where the round is mandatory or the model appeals, ``F_k(w) < rho_k``; a NaN loss never appeals."""
    if situation.mandatory or situation.loss < situation.requirement:
        return Decision.JOINED
    return Decision.SAT_OUT


POLICIES: dict[str, Policy] = {"always": always, "appeal": appeal}
