"""Settings of the influence that one client has on the model."""

from typing import Literal

from pydantic import Field

from fedappeal.settings.model import AtLeastOne, Settings, TrimShare

InfluenceBound = Literal["off", "bounded"]
Aggregation = Literal["mean", "median", "trimmed-mean"]


class InfluenceSettings(Settings):
    """Bounds on one client's weight and update, and how a round's models become one."""

    influence: InfluenceBound = Field(
        "off",
        description="bounds on one client's weight and update, against the cohort's; local and submit: bounded, "
        "where nothing is said",
    )
    influence_weight: AtLeastOne = Field(
        3.0, description="for influence = bounded: most a client's weight may be, in medians"
    )
    influence_norm: AtLeastOne = Field(
        2.0,
        description="for influence = bounded: most a client's weight times the norm of its update may be, in "
        "medians; a client whose update is twice as long is left out",
    )
    aggregation: Aggregation = Field(
        "mean",
        description="what a round makes of its models, coordinate by coordinate; but for the mean, the server holds "
        "all of them at once, and each counts once",
    )
    trim_share: TrimShare = Field(
        0.2, description="for aggregation = trimmed-mean: share of the values left out at either end"
    )
