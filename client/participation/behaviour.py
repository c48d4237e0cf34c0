"""Behaviours, which change the decisions of any policy (``POLICY+BEHAVIOUR``), and a run's mixture of policies.

What volunteers do is patience, a cost of joining, resting, deciding once and a slow device.

The policy is asked first; each behaviour then turns what was wished so far into a wish of its own, in the order in
which they are written. The last wish is the decision. What each of them wished in earlier rounds is remembered with
the client's past, so that a client that was restarted, or a round that is run again, decides alike.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

from fedappeal.core.plugins import PluginSettings
from fedappeal.core.policy import Policy, Situation
from fedappeal.protocol.draws import generator
from fedappeal.protocol.keys import Decision
from fedappeal.settings.config import ConfigError, Count, NonNegative, Positive, RunConfig

JOINT = "+"
"""Between a policy and its behaviours."""
TOLERANCE = 1e-9
"""Largest distance of the sum of the shares from 1."""


class Wish(NamedTuple):
    """The wish, in an earlier round, of the policy and the behaviours before this one."""

    server_round: int
    decision: Decision
    mandatory: bool = False


class Behaviour(Policy):
    """Base of behaviours: derive from it, and write `change` or `available`."""

    needs_loss = False
    remembers: ClassVar[bool] = False
    """Whether `change` reads earlier wishes; the client's past is kept for it."""

    def change(self, wish: Decision, situation: Situation, earlier: Sequence[Wish]) -> Decision:
        """Return the wish that this behaviour makes of another.

        Args:
            wish: of the policy, with the behaviours before this one.
            situation: what the client knows.
            earlier: their wishes in earlier rounds, oldest first; empty unless it ``remembers``.
        """
        return wish


class Composed(Policy):
    """A policy with behaviours; made by `compose`."""

    policy: Policy
    behaviours: tuple[Behaviour, ...]
    _latest: tuple[Situation, tuple[Decision, ...]] | None = None

    def decide(self, situation: Situation) -> Decision:
        """Return the last wish."""
        return self.wishes(situation)[-1]

    def wishes(self, situation: Situation) -> tuple[Decision, ...]:
        """Return the policy's wish, and each behaviour's."""
        if self._latest is None or self._latest[0] is not situation:
            wishes = [self.policy.decide(situation)]
            for place, behaviour in enumerate(self.behaviours):
                earlier = tuple(
                    Wish(past.server_round, past.wishes[place], past.mandatory)
                    for past in situation.history
                    if past.wishes
                )
                wishes.append(behaviour.change(wishes[-1], situation, earlier))
            self._latest = situation, tuple(wishes)
        return self._latest[1]

    def available(self, seed: int, client_id: str, server_round: int) -> bool:
        """Whether all of them are available."""
        return all(part.available(seed, client_id, server_round) for part in (self.policy, *self.behaviours))


def parts_of(name: str) -> list[str]:
    """Return the names of a policy and its behaviours."""
    return [part.strip() for part in name.split(JOINT)]


def check_parts(name: str, kinds: Sequence[type[Policy]]) -> None:
    """Check that a policy comes first, and that behaviours follow, each once.

    Args:
        name: as it was written.
        kinds: its parts' classes.

    Raises:
        ConfigError: for another order, or a behaviour without a policy.
    """
    behaves = [issubclass(kind, Behaviour) for kind in kinds]
    if behaves[0] or not all(behaves[1:]) or len(set(kinds)) < len(kinds):
        raise ConfigError(
            f"participation = '{name}' is not allowed: a policy comes first, then behaviours, each once: "
            "POLICY+BEHAVIOUR, as in appeal+rest"
        )


def compose(parts: Sequence[Policy]) -> Policy:
    """Return a policy with its behaviours; the policy itself where there are none."""
    policy, *behaviours = parts
    if not behaviours:
        return policy
    attributes = {
        "name": JOINT.join(part.name for part in parts),
        "mandatory": any(part.mandatory for part in parts),
        "needs_loss": any(part.needs_loss for part in parts),
        "needs_history": any(part.needs_history or getattr(part, "remembers", False) for part in parts),
        "looks_ahead": any(part.looks_ahead for part in parts),
        "can_leave": any(part.can_leave for part in parts),
        "policy": policy,
        "behaviours": tuple(behaviours),
    }
    composed: Policy = type("Composed", (Composed,), attributes)()
    return composed


@dataclass(frozen=True)
class Mixture:
    """Policies by name, each with the share of clients that has it.

    Attributes:
        shares: ``(name, share)``, in the order of the text; the shares add up to 1.
    """

    shares: tuple[tuple[str, float], ...]

    @classmethod
    def parse(cls, text: str) -> "Mixture":
        """Return the policies that a setting names: ``appeal``, ``appeal+rest`` or ``appeal=0.7,always=0.3``.

        Raises:
            ConfigError: for another form, a policy named twice, or shares that do not add up to 1.
        """
        if "=" not in text:
            return cls(((text.strip(), 1.0),))
        shares: dict[str, float] = {}
        for part in text.split(","):
            name, _, number = (piece.strip() for piece in part.partition("="))
            try:
                share = float(number)
            except ValueError:
                share = -1.0
            if not name or not 0 <= share <= 1 or name in shares:
                raise ConfigError(
                    f"participation = {text!r} is not allowed: NAME=SHARE,NAME=SHARE,... with shares in [0, 1], "
                    "each name once"
                )
            shares[name] = share
        if abs(sum(shares.values()) - 1) > TOLERANCE:
            raise ConfigError(
                f"participation = {text!r} is not allowed: its shares add up to {sum(shares.values()):g}, not to 1"
            )
        return cls(tuple(shares.items()))

    @classmethod
    def of_run(cls, config: RunConfig, assumed: str) -> "Mixture":
        """Return a run's policies; ``assumed``: what its strategy's paper assumes."""
        return cls.parse(assumed if config.participation == "auto" else config.participation)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the policies."""
        return tuple(name for name, _ in self.shares)

    @property
    def parts(self) -> tuple[str, ...]:
        """Names of the policies and of their behaviours, each once."""
        return tuple(dict.fromkeys(part for name in self.names for part in parts_of(name)))

    def of(self, seed: int, client_id: str) -> str:
        """Return a client's policy: a pure function of the run's seed and the client-id."""
        if len(self.shares) == 1:
            return self.shares[0][0]
        draw, reached = generator(seed, "participation", client=client_id).random(), 0.0
        for name, share in self.shares:
            reached += share
            if draw < reached:
                return name
        return next(name for name, share in reversed(self.shares) if share > 0)


class Inertia(Behaviour):
    """Join on until the policy has wished otherwise in some rounds in a row."""

    name = "inertia"
    remembers = True
    can_leave = True

    class Settings(PluginSettings):
        """The behaviour's settings."""

        rounds: Count = 3
        """bad rounds in a row, in which the policy would not join"""
        then: Literal["obey", "leave"] = "obey"
        """what comes in the last of them: what the policy wishes, or leaving for good"""

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

        cost: NonNegative = 0.1
        """what joining costs, in units of rho_k: loss, or the metric"""

    def change(self, wish: Decision, situation: Situation, earlier: Sequence[Wish]) -> Decision:
        """Return that the client sits out where joining does not pay.

        Joining pays where it costs less than the model's advantage, and in mandatory rounds. NaN does not pay.
        """
        pays = situation.mandatory or situation.advantage > self.settings.cost
        return Decision.SAT_OUT if wish is Decision.JOINED and not pays else wish


class Rest(Behaviour):
    """Rest for some rounds in place of sitting out one, or of leaving."""

    name = "rest"
    remembers = True

    class Settings(PluginSettings):
        """The behaviour's settings."""

        rounds: Count = 5
        """rounds of a rest, counted from the one in which the policy would not join"""

    def change(self, wish: Decision, situation: Situation, earlier: Sequence[Wish]) -> Decision:
        """Return that the client sits out while it rests, in mandatory rounds too; it never leaves."""
        last = 0
        for before in (*earlier, Wish(situation.server_round, wish)):
            if before.server_round > last and before.decision is not Decision.JOINED:
                last = before.server_round + self.settings.rounds - 1
        return Decision.SAT_OUT if situation.server_round <= last else Decision.JOINED


class Once(Behaviour):
    """Decide once: what the policy wished when first free to choose stands.

    It stands for the rest of the run.
    """

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

        steps: Positive = 10.0
        """local steps a virtual second of the median device"""
        spread: NonNegative = 0.5
        """standard deviation of the logarithm of devices' speeds; 0: alike"""
        bandwidth: NonNegative = 0.0
        """bytes a virtual second, either way; 0: no time for transfers"""

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
