"""The client's half of an algorithm: its settings, how clients train, and what they report.

A strategy derives from it by `strategies.rounds.algorithm.Algorithm`, which adds what the server does. Nothing here
loads torch or Flower.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, Protocol, Self

from numpy.typing import NDArray

from fedappeal.core.local_rule import LocalRule, Store
from fedappeal.core.local_rule import LocalRule as Rule
from fedappeal.core.plugins import Plugin, PluginSettings, parse_section
from fedappeal.core.requirement import Measured
from fedappeal.settings.config import RunConfig, Scalar

Claims = Mapping[str, float]
"""What a joined client tells the server about itself, by key."""
Adapting = tuple[LocalRule, Mapping[str, Scalar]]
"""Local training before a model is judged: a rule, and training settings that go before the run's."""


class Privacy:
    """What an algorithm cannot do without of what clients may keep to themselves."""

    needs_losses: ClassVar[bool] = False
    """Whether the server needs the clients' losses."""
    needs_weight: ClassVar[bool] = False
    """Whether the server needs what `report` returns; True in a class that writes `report`, unless that says."""
    needs_appeal: ClassVar[bool] = False
    """Whether the server needs to know which clients' requirement the model meets."""


class PersonalModels:
    """How clients use a model that they are sent: local training before it is judged, or a model of their own."""

    def tuning_steps(self) -> int:
        """Return the fine-tuning steps before a client judges the model that it is sent."""
        return 0

    def adaptation(self) -> Adapting | None:
        """Return how a client adapts the model before a second evaluation; None: there is none."""
        return None

    def use(self) -> Adapting | None:
        """Return the local training after which a client would use a model; by default `adaptation`.

        Clients that judge by held-out data judge the model after it.
        """
        return self.adaptation()

    def own_model(self, store: Store, run_key: str, before: int) -> Mapping[str, NDArray[Any]]:
        """Return a client's own model, by which it is evaluated a second time; empty: none.

        Args:
            store: the client's memory.
            run_key: which run.
            before: the model is that from before this round.
        """
        return {}

    @property
    def has_own_models(self) -> bool:
        """Whether clients keep a model of their own."""
        return type(self).own_model is not PersonalModels.own_model

    def evaluation_settings(self) -> dict[str, Scalar]:
        """Return what EVALUATE carries besides the model, the round and the general settings."""
        return {}


class Priority:
    """Which clients an algorithm serves first."""

    def granted(self, told: Mapping[str, Scalar]) -> bool | None:
        """Return whether a message grants a client priority; None: it does not say.

        Args:
            told: what the message tells about the strategy, by key.
        """
        return None

    def asks_priority(self, client: int, clients: int) -> bool:
        """Whether client number ``client`` of ``clients`` asks for priority by default."""
        return False


class _Reporting(Protocol):
    def report(self, measured: Measured) -> Claims: ...


class Attacks:
    """How an attacker gains weight, in experiments."""

    weight_claim: ClassVar[str] = ""
    """The claim that decides a client's weight, which an attacker makes up; empty: none does."""

    def false_report(self: _Reporting, measured: Measured, pretended: Measured) -> Claims:
        """Return what an attacker tells that pretends another measurement.

        Args:
            measured: what the client measured.
            pretended: what it pretends.
        """
        return self.report(pretended)


__all__ = ["Claims", "ClientSide", "StrategySettings"]


class StrategySettings(PluginSettings):
    """Settings of a strategy; derive from it, one field a setting."""


class ClientSide(Privacy, PersonalModels, Priority, Attacks, Plugin):
    """What an algorithm decides on clients.

    Args:
        settings: the algorithm's own ``Settings``, by keyword, all optional.

    Raises:
        ConfigError: for a setting that is not allowed.
    """

    Settings: ClassVar[type[PluginSettings]] = StrategySettings
    LocalRule: ClassVar[type[Rule] | None] = None
    """How clients train, where that is part of the algorithm; None: by SGD, or by the rule that the run names."""
    policy: ClassVar[str] = "appeal"
    """The participation policy of the algorithm's paper: the default."""
    compares_losses: ClassVar[bool] = False
    """Whether `report` compares the client's loss with rho_k, which then has to be a loss."""
    loss_modes: ClassVar[tuple[str, ...]] = ("evaluation", "training")
    """Ways of measuring a loss that the algorithm allows."""
    from_run: ClassVar[Mapping[str, str]] = {}
    """General settings that stand in for own settings that are not set: own field to general key."""

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        if "report" in cls.__dict__ and "needs_weight" not in cls.__dict__:
            cls.needs_weight = True
        rule = cls.__dict__.get("LocalRule")
        if rule is not None and "Settings" not in rule.__dict__:
            rule.Settings, rule.section = cls.Settings, cls.name

    def __init__(self, **settings: Any) -> None:
        super().__init__(parse_section(type(self), settings))

    @classmethod
    def of_run(cls, config: RunConfig, **shared: Any) -> Self:
        """Return the algorithm with a run's settings.

        Args:
            config: the run's settings.
            shared: the settings that all strategies share, by keyword.

        Raises:
            ConfigError: for a setting that is not allowed.
        """
        general = config.as_config()
        settings = {field: general[key] for field, key in cls.from_run.items()}
        settings |= {key.replace("-", "_"): value for key, value in config.section(cls.name).items()}
        return cls(**settings, **shared)

    def report(self, measured: Measured) -> Claims:
        """Return what a client that joined tells the server besides its model.

        Args:
            measured: what the client measured of the model that was sent, and what it requires.
        """
        return {}

    @property
    def reports(self) -> bool:
        """Whether a joined client reports anything that it has to measure."""
        return type(self).report is not ClientSide.report

    @property
    def rule_name(self) -> str:
        """Name of the local rule that clients follow, unless the run names another."""
        return self.LocalRule.name if self.LocalRule is not None else "sgd"
