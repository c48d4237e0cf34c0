"""Settings that strategies share: of the rounds, of the learning rate's schedule, of counted local steps."""

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import PlainValidator

from fedappeal.core.algorithm import StrategySettings
from fedappeal.settings.config import ConfigError, Count, CountOrZero, RunConfig
from fedappeal.settings.rounds import AskingSettings, RoundSettings, rounds_or_auto
from fedappeal.settings.training import InfluenceSettings, LearningRateSchedule, LocalTrainingSettings


class SharedSettings(InfluenceSettings, LearningRateSchedule, AskingSettings, RoundSettings):
    """Settings of the rounds, the same for every strategy; all have a default."""

    clients_per_round: Count | None = None
    """joiners that a round aggregates; None: all"""
    min_clients: Count = 1
    """clients without which round 1 does not begin"""
    expected_clients: CountOrZero = 0
    """clients to wait for before round 1, as long as they keep coming; 0: min_clients"""
    max_clients: CountOrZero = 0
    """clients that are enrolled, of a run of real nodes; 0: all"""
    seed: CountOrZero = 0
    """seed of the sampling"""
    mandatory_rounds: Annotated[
        int | Literal["auto"] | None,
        PlainValidator(lambda value: value if value is None else rounds_or_auto(value, 0)),
    ] = None
    """rounds in which clients are asked not to opt out: the first N; None: max(10, 5 % of the rounds); auto: as
    `strategies.rounds.asking` says"""

    @classmethod
    def of_run(cls, config: RunConfig, knows_mandatory: bool) -> Self:
        """Return the shared settings of a run.

        Args:
            config: the run's settings.
            knows_mandatory: whether mandatory rounds mean anything to a policy of the run.
        """
        same = {name: getattr(config, name) for name in cls.model_fields if name in type(config).model_fields}
        different = {
            "clients_per_round": config.clients_per_round or None,
            "min_clients": config.min_clients or 1,
            "expected_clients": config.resolved_min_clients,
            "max_clients": config.resolved_max_clients,
            "mandatory_rounds": None if config.mandatory_rounds == -1 else config.mandatory_rounds,
        }
        unknown = {} if knows_mandatory else {"mandatory_rounds": 0, "on_empty_round": "keep"}
        return cls(**{**same, **different, **unknown})


RATE = "learning-rate"


def learning_rate_share(schedule: LearningRateSchedule, number: int, rounds: int) -> float:
    r"""Return the share of the learning rate with which clients train in a round.

    With T rounds, W of them warm-up, f the final share, and ``p = (t - W - 1) / (T - W - 1)`` after the warm-up::

        t <= W      t / (W + 1)
        constant    1
        linear      (1 - p) + p f
        cosine      (1 - u) + u f,   u = (1 - cos(pi p)) / 2

    Round W + 1 is the first with the whole rate, round T the one with the final share. A round after T keeps that
    share; where T = W + 1, round T has the whole rate.

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
    if not schedule.constant_learning_rate and RATE not in config:
        raise ConfigError(
            f"{RATE} is missing in train_config: lr-schedule = '{schedule.lr_schedule}' with "
            f"lr-warmup-rounds = {schedule.lr_warmup_rounds} scales it"
        )


FROM_RUN: Mapping[str, str] = {key.replace("-", "_"): key for key in ("local-steps", "local-epochs", "batch-size")}
"""The run's settings that stand in for these."""


class CountedSteps(StrategySettings):
    """How many local steps clients take: as the run says, where it is not set."""

    local_steps: CountOrZero | None = None
    """local steps; 0: by epochs; not set: the run's"""
    local_epochs: CountOrZero | None = None
    """epochs; not set: the run's"""
    batch_size: Count | None = None
    """examples a step; not set: the run's"""

    def check_counted(self, strategy: str) -> None:
        """Check that the number of steps is known.

        Raises:
            ConfigError: names the setting, under the strategy's name.
        """
        if self.local_steps is None and self.local_epochs is None:
            raise ConfigError(
                f"{strategy}.local-steps is missing: how many steps clients take, or {strategy}.local-epochs"
            )
        if not self.local_steps and not self.local_epochs:
            raise ConfigError(f"{strategy}.local-steps = 0 is not allowed where {strategy}.local-epochs = 0")
        if not self.local_steps and self.batch_size is None:
            raise ConfigError(f"{strategy}.batch-size is missing: steps of an epoch follow from it")

    def steps(self, examples: int) -> int:
        """Return the local steps of a client with this many training examples."""
        steps, epochs = self.local_steps or 0, self.local_epochs or 0
        training = LocalTrainingSettings(local_steps=steps, local_epochs=epochs, batch_size=self.batch_size or 1)
        return training.steps(examples)
