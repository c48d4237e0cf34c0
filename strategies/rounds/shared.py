"""Settings that every strategy shares."""

from typing import Annotated, Literal

from pydantic import Field, PlainValidator

from fedappeal.settings.config import (
    Aggregation,
    AtLeastOne,
    Count,
    CountOrZero,
    InfluenceBound,
    LrSchedule,
    Positive,
    PositiveShare,
    Settings,
    TrimShare,
    rounds_or_auto,
)


class SharedSettings(Settings):
    """Settings of the rounds, the same for every strategy; all have a default."""

    clients_per_round: Count | None = Field(None, description="joiners that a round aggregates; None: all")
    min_clients: Count = Field(1, description="clients without which round 1 does not begin")
    expected_clients: CountOrZero = Field(
        0, description="clients to wait for before round 1, as long as they keep coming; 0: min_clients"
    )
    max_clients: CountOrZero = Field(0, description="clients that are enrolled, of a run of real nodes; 0: all")
    start_timeout: Positive = Field(300.0, description="seconds to wait for min_clients")
    start_after: Positive = Field(
        30.0,
        description="seconds after the last client came when round 1 begins with fewer than expected_clients",
    )
    round_timeout: Positive = Field(60.0, description="deadline of one exchange, in seconds")
    seed: CountOrZero = Field(0, description="seed of the sampling")
    mandatory_rounds: Annotated[
        int | Literal["auto"] | None,
        PlainValidator(lambda value: value if value is None else rounds_or_auto(value, 0)),
    ] = Field(
        None,
        description="rounds in which clients are asked not to opt out: the first N; None: max(10, 5 % of the "
        "rounds); auto: as `strategies.rounds.asking` says",
    )
    on_empty_round: Literal["ask-all", "keep"] = Field(
        "ask-all", description="after a round without a joiner: the next is mandatory, or nothing changes"
    )
    ask_on: bool = Field(True, description="whether others are asked in place of clients that sit out")
    evaluate_every: CountOrZero = Field(1, description="rounds between evaluations; 0: after the last only")
    measure_leavers: bool = Field(True, description="whether clients that left are still evaluated")
    lr_schedule: LrSchedule = Field("constant", description="how the learning rate falls from round to round")
    lr_warmup_rounds: CountOrZero = Field(0, description="first rounds, in which it rises; 0: none")
    lr_final_share: PositiveShare = Field(0.1, description="learning rate of the last round, as a share")
    influence: InfluenceBound = Field("off", description="bounds on a client's weight and update: bounded or off")
    influence_weight: AtLeastOne = Field(3.0, description="most a bounded weight may be, in medians of the cohort's")
    influence_norm: AtLeastOne = Field(2.0, description="the same of an update's norm")
    aggregation: Aggregation = Field("mean", description="mean; median, trimmed-mean: hold all models of a round")
    trim_share: TrimShare = Field(0.2, description="share that trimmed-mean leaves out at either end")

    @property
    def constant_learning_rate(self) -> bool:
        """Whether clients train with the same learning rate in every round."""
        return self.lr_schedule == "constant" and not self.lr_warmup_rounds
