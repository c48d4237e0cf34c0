"""Settings of experiments with clients that attack."""

from typing import Literal

from pydantic import Field

from fedappeal.settings.model import NonNegative, Positive, Settings, Share


class AttackSettings(Settings):
    """How many clients attack, and how."""

    byzantine_share: Share = Field(0.0, description="experiments: share of clients that attack")
    byzantine_attack: Literal["inflate", "claim", "zero", "huge", "flip"] = Field(
        "inflate",
        description="experiments: the weight is computed from an inflated loss, or made up; or the model is replaced "
        "(zeros, 1e30, the update times byzantine-scale) and every claim is the largest",
    )
    byzantine_inflation: Positive = Field(10.0, description="experiments: factor on an attacker's loss")
    byzantine_claim: float = Field(0.25, allow_inf_nan=False, description="experiments: the weight it makes up")
    byzantine_scale: float = Field(
        -20.0, allow_inf_nan=False, description="experiments: factor on the update, for byzantine-attack = flip"
    )
    byzantine_noise: NonNegative = Field(
        1.0, description="experiments: noise on an attacker's model, in standard deviations of its update"
    )
