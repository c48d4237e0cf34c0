"""Which rounds of a run are special: rules that the settings, the server and the command line share."""

import math

_FEWEST = 10


def default_mandatory_rounds(rounds: int) -> int:
    """Return ``max(10, 5 % of the rounds)``, at most all: the rounds in which clients are asked not to opt out.

    Five per cent alone (MaxFL, Table 1) freezes short runs: nobody prefers a one-round model to training alone.

    Args:
        rounds: of the run; 0: not known, which leaves the 10.
    """
    return min(rounds or _FEWEST, max(_FEWEST, -(-rounds // 20)))


def share_of_rounds(share: float, rounds: int) -> float:
    """Return ``share * rounds`` without what floating point adds: ``0.07 * 100`` is a hair above 7."""
    return round(share * rounds, 9)


def warmup_rounds(share: float, rounds: int) -> int:
    """Return how many of a run's rounds FedALIGN warms up in: the share, rounded up."""
    return math.ceil(share_of_rounds(share, rounds))
