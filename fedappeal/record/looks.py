"""How a client's decision looks wherever it is shown: one table for the terminal, pages, reports and pictures.

A test holds every pair of colours apart for readers with each kind of colour blindness, and every colour apart from
the white and the dark page. A sign or a text says the same, where a colour cannot be seen.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass

JOINED, ON_REQUEST, SAT_OUT, LEFT = "joined", "on-request", "sat-out", "left"
"""Decisions; one that joins in a mandatory round, whose record says ``joined``, joins on request."""
ABSENT, FAILED, SURPLUS, REFUSED = "absent", "failed", "surplus", "refused"


@dataclass(frozen=True)
class Look:
    """The appearance of a decision.

    Attributes:
        title: what it is called in legends.
        sign: one character.
        colour: ``#rrggbb``.
    """

    title: str
    sign: str
    colour: str


LOOKS: Mapping[str, Look] = {
    JOINED: Look("joined", "●", "#0072b2"),
    ON_REQUEST: Look("joined on request", "●", "#56b4e9"),
    SAT_OUT: Look("sat out", "○", "#e69f00"),
    LEFT: Look("left for good", "×", "#d55e00"),
    ABSENT: Look("absent: no reply in time", "z", "#666666"),
    FAILED: Look("failed", "!", "#cc79a7"),
    REFUSED: Look("joined, update not used", "-", "#a0522d"),
    SURPLUS: Look("joined after enough had", "+", "#009e73"),
}
"""By the word of the run's record."""
LOOK_FIELDS = {decision: asdict(look) for decision, look in LOOKS.items()}
"""The table as a page is told of it."""
NOT_ASKED = Look("not asked", "·", "#ffffff")


def shown_as(decision: str, mandatory: bool) -> str:
    """Return the word by which a recorded decision is shown."""
    return ON_REQUEST if mandatory and decision == JOINED else decision


def look_of(decision: str, mandatory: bool = False) -> Look | None:
    """Return the appearance of a decision in a round; None for unknown words.

    Args:
        decision: the word of the record.
        mandatory: whether clients were asked not to opt out of the round.
    """
    return LOOKS.get(shown_as(decision, mandatory))
