"""Settings that every strategy takes by keyword: groups of a run's, and what a strategy alone means otherwise."""

from typing import Annotated, Literal, Self

from pydantic import Field, PlainValidator

from fedappeal.settings.config import Count, CountOrZero, RunConfig
from fedappeal.settings.influence import InfluenceSettings
from fedappeal.settings.participation import AskingSettings, rounds_or_auto
from fedappeal.settings.rounds import RoundSettings
from fedappeal.settings.training import LearningRateSchedule


class SharedSettings(InfluenceSettings, LearningRateSchedule, AskingSettings, RoundSettings):
    """Settings of the rounds, the same for every strategy; all have a default."""

    clients_per_round: Count | None = Field(None, description="joiners that a round aggregates; None: all")
    min_clients: Count = Field(1, description="clients without which round 1 does not begin")
    expected_clients: CountOrZero = Field(
        0, description="clients to wait for before round 1, as long as they keep coming; 0: min_clients"
    )
    max_clients: CountOrZero = Field(0, description="clients that are enrolled, of a run of real nodes; 0: all")
    seed: CountOrZero = Field(0, description="seed of the sampling")
    mandatory_rounds: Annotated[
        int | Literal["auto"] | None,
        PlainValidator(lambda value: value if value is None else rounds_or_auto(value, 0)),
    ] = Field(
        None,
        description="rounds in which clients are asked not to opt out: the first N; None: max(10, 5 % of the "
        "rounds); auto: as `strategies.rounds.asking` says",
    )

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
