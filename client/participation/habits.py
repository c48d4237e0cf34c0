"""Behaviours of people who volunteer: patience, a cost of joining, resting, deciding once, a device's speed."""

import math
from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from client.participation.behaviour import Behaviour, Wish
from fedappeal.core.plugins import PluginSettings
from fedappeal.core.policy import Situation
from fedappeal.protocol.draws import generator
from fedappeal.protocol.keys import Decision
from fedappeal.settings.config import Count, NonNegative, Positive


class Inertia(Behaviour):
    """Join on until the policy has wished otherwise in some rounds in a row."""

    name = "inertia"
    remembers = True
    can_leave = True

    class Settings(PluginSettings):
        """The behaviour's settings."""

        rounds: Count = Field(3, description="bad rounds in a row, in which the policy would not join")
        then: Literal["obey", "leave"] = Field(
            "obey", description="what comes in the last of them: what the policy wishes, or leaving for good"
        )

    def change(self, wish: Decision, situation: Situation, earlier: Sequence[Wish]) -> Decision:
        """Return that the client joins before its patience is over."""
        if wish is Decision.JOINED:
            return wish
        bad = 1
        for before in reversed(earlier):
            if before.decision is Decision.JOINED:
                break
            bad += 1
        if bad < self.settings.rounds:
            return Decision.JOINED
        return Decision.LEFT if self.settings.then == "leave" else wish


class Costly(Behaviour):
    """Join only where the model is better than required by more than joining costs."""

    name = "costly"
    mandatory = True
    needs_loss = True

    class Settings(PluginSettings):
        """The behaviour's settings."""

        cost: NonNegative = Field(0.1, description="what joining costs, in units of rho_k: loss, or the metric")

    def change(self, wish: Decision, situation: Situation, earlier: Sequence[Wish]) -> Decision:
        """Return that the client sits out where joining costs as much as the model's advantage; NaN does not pay."""
        pays = situation.mandatory or situation.advantage > self.settings.cost
        return Decision.SAT_OUT if wish is Decision.JOINED and not pays else wish


class Rest(Behaviour):
    """Rest for some rounds in place of sitting out one, or of leaving."""

    name = "rest"
    remembers = True

    class Settings(PluginSettings):
        """The behaviour's settings."""

        rounds: Count = Field(
            5, description="rounds of a rest, counted from the one in which the policy would not join"
        )

    def change(self, wish: Decision, situation: Situation, earlier: Sequence[Wish]) -> Decision:
        """Return that the client sits out while it rests, in mandatory rounds too; it never leaves."""
        last = 0
        for before in (*earlier, Wish(situation.server_round, wish)):
            if before.server_round > last and before.decision is not Decision.JOINED:
                last = before.server_round + self.settings.rounds - 1
        return Decision.SAT_OUT if situation.server_round <= last else Decision.JOINED


class Once(Behaviour):
    """Decide once: what the policy wished when it was first free to choose stands for the rest of the run."""

    name = "once"
    remembers = True

    def change(self, wish: Decision, situation: Situation, earlier: Sequence[Wish]) -> Decision:
        """Return the wish of the first round that was not mandatory; in mandatory rounds the policy's."""
        if situation.mandatory:
            return wish
        return next((before.decision for before in earlier if not before.mandatory), wish)


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
