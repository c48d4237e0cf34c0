"""Settings of a run's rounds, and which rounds are special: rules that settings and server share."""

from pydantic import Field

from fedappeal.settings.model import Count, CountOrZero, Positive, Settings

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


class SizeSettings(Settings):
    """The strategy, and how many rounds and clients a run has."""

    strategy: str = Field("maxfl", min_length=1, description="server strategy")
    rounds: Count = Field(20, le=MOST_ROUNDS, description="number of rounds")
    clients_per_round: CountOrZero = Field(0, description="clients folded a round; 0: all")
    min_clients: CountOrZero = Field(
        0,
        description="clients without which round 1 does not begin; 0: all are waited for, and the run begins without "
        "clients that do not come (start-after)",
    )
    max_clients: CountOrZero = Field(
        0, description="clients that a deployed run takes in; 0: twice as many as clients and unseen-clients together"
    )


class RoundSettings(Settings):
    """When rounds begin, end and are measured."""

    start_timeout: Positive = Field(300.0, description="seconds to wait for min-clients")
    start_after: Positive = Field(
        30.0,
        description="for min-clients = 0: seconds after the last client came when round 1 begins without the others",
    )
    round_timeout: Positive = Field(60.0, description="deadline of one exchange, in seconds")
    evaluate_every: CountOrZero = Field(1, description="evaluate every N rounds; 0: after the last only")
    measure_leavers: bool = Field(True, description="clients that left still answer evaluation")


class EvaluationSettings(Settings):
    """What clients tell when a round is measured."""

    evaluate_train: bool = Field(
        True, description="evaluation also asks whether the model appeals by its training loss: one more pass"
    )
    report_train_loss: bool = Field(
        False, description="experiments: evaluation reports the training loss; beside an appeal weight it tells rho_k"
    )
