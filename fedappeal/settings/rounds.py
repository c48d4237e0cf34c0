"""Which rounds of a run are special: rules that settings and server share."""

MOST_ROUNDS = 10**6
"""Of a run; a client declines a message of a later round."""

MOST_GOODWILL = 10_000
"""Rounds of a run that a client may give: it remembers each."""

_FEWEST = 10


def default_mandatory_rounds(rounds: int) -> int:
    """Return the number of mandatory rounds: ``max(10, 5 % of the rounds)``, at most all.

    Five per cent alone (MaxFL, Table 1) freezes short runs: no client prefers a one-round model to training alone.

    Args:
        rounds: of the run; 0: not known, which leaves the 10.
    """
    return min(rounds or _FEWEST, max(_FEWEST, -(-rounds // 20)))


def most_asked_rounds(rounds: int) -> int:
    """Return the most mandatory rounds that a server may choose: half of a run's rounds, rounded up.

    Args:
        rounds: of the run when it began; 0: not known, which leaves 10.
    """
    return -(-rounds // 2) or _FEWEST


def share_of_rounds(share: float, rounds: int) -> float:
    """Return ``share * rounds`` without rounding noise: ``0.07 * 100`` is 7."""
    return round(share * rounds, 9)
