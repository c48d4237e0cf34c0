"""What is read off the runs of FedALIGN's figures."""

from fedappeal.views.comparison.measures import Lines, last, late, reading
from strategies.fedalign.strategy import warmup_rounds

_ACCURACY = "priority_accuracy"


@reading
def after_warm_up(lines: Lines, share: float) -> float | None:
    """Return the priority clients' mean accuracy after the warm-up.

    The warm-up is a share of the rounds.
    """
    if not lines:
        return None
    rounds = int(lines[-1]["round"])
    return late(_ACCURACY, rounds - warmup_rounds(share, rounds))(lines)


@reading
def end_of_warm_up(lines: Lines, share: float) -> float | None:
    """Return the priority clients' accuracy at the end of the warm-up.

    The warm-up is a share of the rounds.
    """
    return last(_ACCURACY)(lines[: warmup_rounds(share, int(lines[-1]["round"]))]) if lines else None
