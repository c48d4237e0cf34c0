"""Settings of a run's rounds and of who joins them; which rounds are special."""

from typing import Annotated, Literal

from pydantic import Field, PlainValidator

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
    """Return the most mandatory rounds that a server may choose: half, rounded up.

    Args:
        rounds: of the run when it began; 0: not known, which leaves 10.
    """
    return -(-rounds // 2) or _FEWEST


def share_of_rounds(share: float, rounds: int) -> float:
    """Return ``share * rounds`` without rounding noise: ``0.07 * 100`` is 7."""
    return round(share * rounds, 9)


class SizeSettings(Settings):
    """The strategy, and how many rounds and clients a run has."""

    strategy: str = Field("maxfl", min_length=1)
    """server strategy"""
    rounds: Count = Field(20, le=MOST_ROUNDS)
    """number of rounds"""
    clients_per_round: CountOrZero = 0
    """clients folded a round; 0: all"""
    min_clients: CountOrZero = 0
    """clients without which round 1 does not begin; 0: all are waited for, and the run begins without clients that do
    not come (start-after)"""
    max_clients: CountOrZero = 0
    """clients that a deployed run takes in; 0: twice as many as clients and unseen-clients together"""


class RoundSettings(Settings):
    """When rounds begin, end and are measured."""

    start_timeout: Positive = 300.0
    """seconds to wait for min-clients"""
    start_after: Positive = 30.0
    """for min-clients = 0: seconds after the last client came when round 1 begins without the others"""
    round_timeout: Positive = 60.0
    """deadline of one exchange, in seconds"""
    evaluate_every: CountOrZero = 1
    """evaluate every N rounds; 0: after the last only"""
    measure_leavers: bool = True
    """clients that left still answer evaluation"""


class EvaluationSettings(Settings):
    """The clients' part in measuring a round."""

    evaluate_train: bool = True
    """evaluation also asks whether the model appeals by its training loss: one more pass"""
    report_train_loss: bool = False
    """experiments: evaluation reports the training loss; beside an appeal weight it tells rho_k"""


AUTO: Literal["auto"] = "auto"


def rounds_or_auto(value: object, least: int = -1) -> int | str:
    """Return a number of rounds, or ``auto``.

    Args:
        value: as it was given.
        least: the smallest number.

    Raises:
        ValueError: for anything else.
    """
    text = str(value)
    if text == AUTO:
        return text
    if isinstance(value, bool) or not text.removeprefix("-").isdecimal() or int(text) < least:
        raise ValueError(f"{AUTO}, or a whole number, at least {least}")
    return int(text)


RoundsOrAuto = Annotated[int | Literal["auto"], PlainValidator(rounds_or_auto)]
"""A number of rounds, or ``auto``; -1 where a number is not set."""


class ParticipationSettings(Settings):
    """The clients' default decisions, and rounds in which they must not opt out."""

    participation: str = Field("auto", min_length=1)
    """policy of clients whose owner names none: a name, a mixture (appeal=0.7,always=0.3), or auto: the strategy's
    own"""
    mandatory_rounds: RoundsOrAuto = AUTO
    """rounds in which clients are asked not to opt out: the first N; -1: max(10, 5 % of the rounds); auto: while more
    and more clients find that the model appeals, in at most half of the rounds"""
    goodwill: Annotated[int, Field(ge=-1, le=MOST_GOODWILL)] = 20
    """rounds in which a client whose owner says nothing joins on request although the model does not meet its
    requirement; -1: all in which it is asked"""


class AskingSettings(Settings):
    """Whom a round asks when clients sit out."""

    on_empty_round: Literal["ask-all", "keep"] = "ask-all"
    """after a round without a joiner: the next is mandatory (with mandatory-rounds = auto while its limit lasts), or
    nothing changes"""
    ask_on: bool = True
    """others are asked in place of clients that sit out; false: a round asks clients-per-round once"""


CROSS_FITTED: Literal["cross-fitted"] = "cross-fitted"
BEST: Literal["best"] = "best"


class JudgingSettings(Settings):
    """The clients' judgement of a model by their requirement rho_k."""

    requirement: str = Field("solo", min_length=1)
    """where a client's requirement rho_k comes from"""
    judge_on: Literal["cross-fitted", "held-out", "train"] = CROSS_FITTED
    """data on which a client compares models with its requirement: cross-fitted: a third of its training data on
    which it never trains, where each half judges what was chosen by the other (with fewer than 12 examples as
    held-out); held-out: all of the third chooses and judges; train: what it trains on, as the papers have it"""
    use: Literal["adapted", "best"] = "adapted"
    """what a client uses, and judges: adapted: the shared model after adaptation-steps; best, for judge-on =
    cross-fitted: the best on its held-out data of that, the shared model as it is sent, and blends of it with the
    client's own last model"""
    adaptation_steps: CountOrZero = 5
    """for judge-on = cross-fitted and held-out: local steps after which a client uses a model, and judges it; 0: as
    it is sent; personalised strategies have steps of their own"""
    loss_mode: Literal["evaluation", "training"] = "evaluation"
    """how a client measures F_k and rho_k on its training data; training: dropout is on"""
