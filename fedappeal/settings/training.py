"""Settings of local training, and of what clients send of it."""

from typing import Annotated, Literal

from pydantic import Field

from fedappeal.settings.model import Count, CountOrZero, NonNegative, Positive, PositiveShare, Settings

Precision = Literal["float32", "bfloat16"]


class LearningRate(Settings):
    """The learning rate of local training."""

    learning_rate: Positive = Field(0.1, description="local learning rate")


class LearningRateSchedule(Settings):
    """How the learning rate changes over the rounds."""

    lr_schedule: Literal["constant", "linear", "cosine"] = Field(
        "constant", description="how the learning rate falls from round to round"
    )
    lr_warmup_rounds: CountOrZero = Field(0, description="first rounds, in which it rises to learning-rate; 0: none")
    lr_final_share: PositiveShare = Field(
        0.1, description="for lr-schedule = linear and cosine: learning rate of the last round, as a share"
    )

    @property
    def constant_learning_rate(self) -> bool:
        """Whether clients train with the same learning rate in every round."""
        return self.lr_schedule == "constant" and not self.lr_warmup_rounds


class LocalSteps(Settings):
    """The steps of one local training."""

    batch_size: Count = Field(32, description="examples a local step")
    local_steps: CountOrZero = Field(30, description="local steps a round; 0: use local-epochs")
    local_epochs: CountOrZero = Field(0, description="local epochs a round, where local-steps is 0")
    momentum: Annotated[float, Field(ge=0, lt=1)] = Field(0.0, description="momentum of local SGD")
    weight_decay: NonNegative = Field(0.0, description="local weight decay; adamw's is decoupled")
    training_precision: Precision = Field(
        "float32", description="of local forward and backward passes; bfloat16: clients train one by one"
    )


class UpdateSettings(Settings):
    """The local rule, and what a client's reply carries."""

    local_rule: str = Field(
        "auto",
        min_length=1,
        description="local training; auto: the strategy's own, another where it leaves that open",
    )
    report_loss: bool = Field(True, description="replies may carry losses; some strategies need them")
    clipping_norm: NonNegative = Field(0.0, description="clients clip their update to this l2 norm; 0: no clipping")
    dp_epsilon: NonNegative = Field(0.0, description="epsilon of local differential privacy; 0: none")
    dp_delta: Annotated[float, Field(gt=0, lt=1)] = Field(1e-5, description="its delta")
    dp_sensitivity: Positive = Field(1.0, description="its sensitivity, in units of the model's parameters")
    tuning_steps: CountOrZero = Field(0, description="local fine-tuning steps before a client judges the model")
    pack: bool = Field(
        True, description="send a model as one array a dtype; false: named arrays, for other ClientApps"
    )
