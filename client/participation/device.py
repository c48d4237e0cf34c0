"""A behaviour without effect on decisions: how fast a client's device is, on a simulation's virtual clock."""

import math

from pydantic import Field

from client.participation.behaviour import Behaviour
from fedappeal.core.plugins import PluginSettings
from fedappeal.protocol.draws import generator
from fedappeal.settings.config import NonNegative, Positive


class Device(Behaviour):
    """Have a device of some speed: a simulation records how long its rounds had taken."""

    name = "device"

    class Settings(PluginSettings):
        """The behaviour's settings."""

        steps: Positive = Field(10.0, description="local steps a virtual second of the median device")
        spread: NonNegative = Field(
            0.5, description="standard deviation of the logarithm of devices' speeds; 0: alike"
        )
        bandwidth: NonNegative = Field(
            0.0, description="bytes a virtual second, either way; 0: no time for transfers"
        )

    def seconds(self, seed: int, client_id: str, steps: int, size: int) -> float:
        """Return the virtual seconds of one training: ``steps / speed_k + 2 * size / bandwidth``.

        ``speed_k`` is the median device's times e to a normal number of deviation ``spread``, drawn once a client.

        Args:
            seed: the run's.
            client_id: the client.
            steps: local steps.
            size: bytes of the model, which goes down and comes back up.
        """
        settings = self.settings
        speed = settings.steps * math.exp(
            settings.spread * generator(seed, "device", client=client_id).standard_normal()
        )
        return float(steps / speed + (2 * size / settings.bandwidth if settings.bandwidth else 0.0))
