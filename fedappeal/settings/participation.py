"""Settings of who joins a round: the policy, how clients are asked, and how they judge a model."""

from typing import Annotated, Literal

from pydantic import Field, PlainValidator

from fedappeal.settings.model import CountOrZero, Settings
from fedappeal.settings.rounds import MOST_GOODWILL

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
    """How clients decide whose owner says nothing, and in which rounds they are asked not to opt out."""

    participation: str = Field(
        "auto",
        min_length=1,
        description="policy of clients whose owner names none: a name, a mixture (appeal=0.7,always=0.3), or auto: "
        "the strategy's own",
    )
    mandatory_rounds: RoundsOrAuto = Field(
        AUTO,
        description="rounds in which clients are asked not to opt out: the first N; -1: max(10, 5 % of the rounds); "
        "auto: while more and more clients find that the model appeals, in at most half of the rounds",
    )
    goodwill: Annotated[int, Field(ge=-1, le=MOST_GOODWILL)] = Field(
        20,
        description="rounds in which a client whose owner says nothing joins on request although the model does not "
        "meet its requirement; -1: all in which it is asked",
    )


class AskingSettings(Settings):
    """Whom a round asks when clients sit out."""

    on_empty_round: Literal["ask-all", "keep"] = Field(
        "ask-all", description="after a round without a joiner: the next is mandatory, or nothing changes"
    )
    ask_on: bool = Field(
        True,
        description="others are asked in place of clients that sit out; false: a round asks clients-per-round once",
    )


class JudgingSettings(Settings):
    """How a client judges a model by its requirement rho_k."""

    requirement: str = Field("solo", min_length=1, description="where a client's requirement rho_k comes from")
    judge_on: Literal["held-out", "train"] = Field(
        "held-out",
        description="data on which a client compares models with its requirement: a third of its training data on "
        "which it never trains, or what it trains on, as the papers have it",
    )
    adaptation_steps: CountOrZero = Field(
        5,
        description="for judge-on = held-out: local steps after which a client uses a model, and judges it; 0: as it "
        "is sent; personalised strategies have steps of their own",
    )
    loss_mode: Literal["evaluation", "training"] = Field(
        "evaluation", description="how a client measures F_k and rho_k on its training data; training: dropout is on"
    )
