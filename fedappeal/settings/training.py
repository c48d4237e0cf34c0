"""Settings of local training, of what clients send of it, and of the influence that one client has on the model."""

from collections.abc import Mapping
from typing import Annotated, Literal, Self

from pydantic import Field

from fedappeal.settings.model import (
    AtLeastOne,
    Count,
    CountOrZero,
    NonNegative,
    Positive,
    PositiveShare,
    Settings,
    TrimShare,
)


class LearningRateSchedule(Settings):
    """The change of the learning rate over the rounds."""

    lr_schedule: Literal["constant", "linear", "cosine"] = "constant"
    """how the learning rate falls from round to round"""
    lr_warmup_rounds: CountOrZero = 0
    """first rounds, in which it rises to learning-rate; 0: none"""
    lr_final_share: PositiveShare = 0.1
    """for lr-schedule = linear and cosine: learning rate of the last round, as a share"""

    @property
    def constant_learning_rate(self) -> bool:
        """Whether clients train with the same learning rate in every round."""
        return self.lr_schedule == "constant" and not self.lr_warmup_rounds


class LocalTrainingSettings(Settings):
    """The settings of one local training."""

    learning_rate: Positive = 0.1
    """local learning rate"""
    batch_size: Count = 32
    """examples a local step"""
    local_steps: CountOrZero = 30
    """local steps a round; 0: use local-epochs"""
    local_epochs: CountOrZero = 0
    """local epochs a round, where local-steps is 0"""
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """momentum of local SGD"""
    weight_decay: NonNegative = 0.0
    """local weight decay; adamw's is decoupled"""
    dropout_noise: Literal["keyed", "stream"] = "keyed"
    """which units dropout drops; keyed: by seed, client, round, step, layer and example, wherever a client trains;
    stream: as runs of earlier versions, in which each form of training drew its own"""
    training_precision: Literal["float32", "bfloat16"] = "float32"
    """of local forward and backward passes; bfloat16: clients train one by one"""

    def changed_by(self, values: Mapping[str, object]) -> Self:
        """Return the settings with those that a message or another training names by key, which are checked.

        Raises:
            ConfigError: one of those is not allowed.
        """
        changed = {key: values[key] for key in self.keys() if key in values}
        return self.parse({**self.as_config(), **changed}) if changed else self

    def steps(self, num_examples: int) -> int:
        """Number of local steps: the setting, or as many as the epochs hold."""
        if self.local_steps:
            return self.local_steps
        return self.local_epochs * -(-num_examples // self.batch_size)


class UpdateSettings(Settings):
    """The local rule, and what a client's reply carries."""

    local_rule: str = Field("auto", min_length=1)
    """local training; auto: the strategy's own, another where it leaves that open"""
    report_loss: bool = True
    """replies may carry losses; some strategies need them"""
    clipping_norm: NonNegative = 0.0
    """clients clip their update to this l2 norm; 0: no clipping"""
    dp_epsilon: NonNegative = 0.0
    """epsilon of local differential privacy; 0: none"""
    dp_delta: Annotated[float, Field(gt=0, lt=1)] = 1e-5
    """its delta"""
    dp_sensitivity: Positive = 1.0
    """its sensitivity, in units of the model's parameters"""
    tuning_steps: CountOrZero = 0
    """local fine-tuning steps before a client judges the model, where judge-on = train or adaptation-steps = 0"""
    pack: bool = True
    """send a model as one array a dtype; false: named arrays, for other ClientApps"""


Aggregation = Literal["mean", "median", "trimmed-mean"]


class InfluenceSettings(Settings):
    """Bounds on one client's weight and update, and how a round's models become one."""

    influence: Literal["off", "bounded"] = "off"
    """bounds on one client's weight and update, against the cohort's; local and submit: bounded, where nothing is
    said"""
    influence_weight: AtLeastOne = 3.0
    """for influence = bounded: most a client's weight may be, in medians"""
    influence_norm: AtLeastOne = 2.0
    """for influence = bounded: most the norm of a client's update may be, in medians; above it counts as bounded, a
    client whose update is twice as long is left out"""
    aggregation: Aggregation = "mean"
    """what a round makes of its models, coordinate by coordinate; but for the mean, the server holds all of them at
    once, and each counts once"""
    trim_share: TrimShare = 0.2
    """for aggregation = trimmed-mean: share of the values left out at either end"""
