"""What is read off the runs of MaxFL's tables, and margins of their claims."""

import statistics
from collections.abc import Sequence

from fedappeal.studies.experiment import Numbers
from fedappeal.views.comparison.measures import Lines, reading

STEADY = 0.05
"""How far apart values of GM-Appeal may lie that hardly change: our reading."""


@reading
def correlation(lines: Lines, one: str, other: str) -> float | None:
    """Return the correlation of two columns over the rounds; None if one is constant."""
    sides = [[line[key] for line in lines if other in line] for key in (one, other)]
    return None if min(len(set(side)) for side in sides) < 2 else statistics.correlation(*sides)


def steady(number: Numbers, rows: Sequence[str]) -> float:
    """Return by how much less than `STEADY` the GM-Appeal of some rows differs."""
    appeals = [number(row, "gm-appeal-late") for row in rows]
    return STEADY - (max(appeals) - min(appeals))


def robust(number: Numbers, column: str) -> float:
    """Return MW-Fed's extra loss by a tenth of attackers, compared with MaxFL's."""

    def lost(row: str) -> float:
        return number(row, column) - number(f"{row}-byz-0.1", column)

    return lost("mw-fed") - lost("maxfl")
