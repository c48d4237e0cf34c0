"""The client's half of an algorithm: its settings, how clients train, and what they report.

A strategy derives from it by `strategies.rounds.algorithm.Algorithm`, which adds what the server does. Nothing here
loads torch or Flower.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, Self

from fedappeal.core.facets import Attacks, Claims, PersonalModels, Priority, Privacy
from fedappeal.core.local_rule import LocalRule as Rule
from fedappeal.core.measured import Measured
from fedappeal.core.plugins import Plugin, PluginSettings, parse_section
from fedappeal.settings.config import RunConfig

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
