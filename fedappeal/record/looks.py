"""How a client's decision looks wherever it is shown: one table for the terminal, pages, reports and pictures.

A test holds every pair of colours apart for readers with each kind of colour blindness, and every colour apart from
the white and the dark page. A sign or a text says the same, where a colour cannot be seen.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

JOINED, ON_REQUEST, SAT_OUT, LEFT = "joined", "on-request", "sat-out", "left"
"""Decisions; one that joins in a mandatory round, whose record says ``joined``, joins on request."""
ABSENT, FAILED, SURPLUS, REFUSED = "absent", "failed", "surplus", "refused"


@dataclass(frozen=True)
class Appearance:
    """The appearance of a decision.

    Attributes:
        title: what it is called in legends.
        sign: one character.
        colour: ``#rrggbb``.
    """

    title: str
    sign: str
    colour: str


_FILE = Path(__file__).with_suffix(".toml")
LOOKS: Mapping[str, Appearance] = {
    word: Appearance(*facts) for word, facts in tomllib.loads(_FILE.read_text("utf-8")).items()
}
"""By the word of the run's record."""
LOOK_FIELDS = {decision: asdict(look) for decision, look in LOOKS.items()}
"""The table as a page is told of it."""
NOT_ASKED = Appearance("not asked", "·", "#ffffff")


def shown_as(decision: str, mandatory: bool) -> str:
    """Return the word by which a recorded decision is shown."""
    return ON_REQUEST if mandatory and decision == JOINED else decision


def look_of(decision: str, mandatory: bool = False) -> Appearance | None:
    """Return the appearance of a decision in a round; None for unknown words.

    Args:
        decision: the word of the record.
        mandatory: whether clients were asked not to opt out of the round.
    """
    return LOOKS.get(shown_as(decision, mandatory))
