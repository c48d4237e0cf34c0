r"""The learning rate of a round: the run's, times a share of the round's number.

With T rounds, W of them warm-up, f the final share, and ``p = (t - W - 1) / (T - W - 1)`` after the warm-up::

    t <= W      t / (W + 1)
    constant    1
    linear      (1 - p) + p f
    cosine      (1 - u) + u f,   u = (1 - cos(pi p)) / 2

Round W + 1 is the first with the whole rate, round T the one with the final share. A round after T keeps that share;
where T = W + 1, round T has the whole rate.
"""

import math
from collections.abc import Mapping
from typing import Any

from fedappeal.settings.config import ConfigError
from fedappeal.settings.training import LearningRateSchedule
from strategies.rounds.round import Round

_RATE = "learning-rate"
_COLUMN = "learning_rate"
"""Column of the history: the learning rate of a round, where it is not the same in all."""


def learning_rate_share(schedule: LearningRateSchedule, number: int, rounds: int) -> float:
    """Return the share of the learning rate with which clients train in a round.

    Args:
        schedule: the settings of the schedule.
        number: of the round, from 1.
        rounds: of the run when it began; 0: not known.

    Raises:
        ConfigError: for a schedule over a number of rounds that is not known.
    """
    warmup, final = schedule.lr_warmup_rounds, schedule.lr_final_share
    if number <= warmup:
        return number / (warmup + 1)
    if schedule.lr_schedule == "constant":
        return 1.0
    if not rounds:
        raise ConfigError(
            f"lr-schedule = '{schedule.lr_schedule}' is not allowed without start, which knows the number of rounds: "
            "constant"
        )
    falling = rounds - warmup - 1
    progress = min(1.0, (number - warmup - 1) / falling) if falling > 0 else 0.0
    if schedule.lr_schedule == "cosine":
        progress = (1 - math.cos(math.pi * progress)) / 2
    return (1 - progress) + progress * final


def check_schedule(schedule: LearningRateSchedule, config: Mapping[str, Any]) -> None:
    """Check that there is a learning rate for the schedule to scale.

    Args:
        schedule: the settings of the schedule.
        config: the general settings that TRAIN carries.

    Raises:
        ConfigError: there is none.
    """
    if not schedule.constant_learning_rate and _RATE not in config:
        raise ConfigError(
            f"{_RATE} is missing in train_config: lr-schedule = '{schedule.lr_schedule}' with "
            f"lr-warmup-rounds = {schedule.lr_warmup_rounds} scales it"
        )


def settings_of_round(schedule: LearningRateSchedule, round: Round, config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a round's settings with its learning rate, which the history records.

    Args:
        schedule: the settings of the schedule; where the rate is constant, nothing changes and none is noted.
        round: the round.
        config: the run's general settings.

    Raises:
        ConfigError: where there is no learning rate to scale.
    """
    check_schedule(schedule, config)
    if schedule.constant_learning_rate:
        return config
    round.metrics[_COLUMN] = rate = config[_RATE] * round.lr_share
    return {**config, _RATE: rate}
