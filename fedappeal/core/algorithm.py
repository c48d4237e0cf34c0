"""The client's half of an algorithm: its settings, how clients train, and what they report.

A strategy derives from it by `strategies.rounds.algorithm.Algorithm`, which adds what the server does. Nothing here
loads torch or Flower.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, TypeVar

from numpy.typing import NDArray

from fedappeal.core.local_rule import LocalRule, Store
from fedappeal.core.local_rule import LocalRule as Rule
from fedappeal.core.plugins import Plugin, PluginSettings, parse_section
from fedappeal.core.requirement import Measured
from fedappeal.settings.config import ConfigError, RunConfig, Scalar
from fedappeal.settings.rounds import BEST

Claims = Mapping[str, float]
"""What a joined client tells the server about itself, by key."""
Adapting = tuple[LocalRule, Mapping[str, Scalar]]
"""Local training before a model is judged: a rule, and training settings that go before the run's."""


class Part:
    """The base of an algorithm's small objects, which it names on its class.

    Args:
        algorithm: the algorithm, whose settings it reads.
    """

    def __init__(self, algorithm: Any) -> None:
        self.algorithm = algorithm
        self.settings: Any = algorithm.settings


PARTS = {
    "survey": "strategies.rounds.algorithm.Survey",
    "influence": "strategies.rounds.algorithm.Influence",
    "personal": "fedappeal.core.algorithm.PersonalModels",
    "priority": "fedappeal.core.algorithm.Priority",
}
"""The attributes by which an algorithm names its small objects, and the base class of each."""


class PersonalModels(Part):
    """How clients personalise a model: adaptation before evaluation, or an own model."""

    keeps_models: ClassVar[bool] = False
    """Whether clients keep a model of their own: `own_model`."""

    def tuning_steps(self) -> int | None:
        """Return the fine-tuning steps before a client judges a model.

        None: no step in training, and the run's ``tuning-steps`` at an evaluation.
        """
        return None

    def adaptation(self) -> Adapting | None:
        """Return the adaptation before a client's second evaluation; None if it has none."""
        return None

    def use(self) -> Adapting | None:
        """Return the local training after which a client would use a model; by default `adaptation`.

        Clients that judge by held-out data judge the model after it.
        """
        return self.adaptation()

    def own_model(self, store: Store, run_key: str, before: int) -> Mapping[str, NDArray[Any]]:
        """Return the client's own model for its second evaluation; empty if it has none.

        Args:
            store: the client's memory.
            run_key: which run.
            before: the model is that from before this round.
        """
        return {}


class Priority(Part):
    """The choice of clients that an algorithm serves first."""

    def granted(self, told: Mapping[str, Scalar]) -> bool | None:
        """Return whether a message grants a client priority; None if it does not say.

        Args:
            told: what the message tells about the strategy, by key.
        """
        return None

    def asks(self, client: int, clients: int) -> bool:
        """Whether client number ``client`` of ``clients`` asks for priority by default."""
        return False


class StrategySettings(PluginSettings):
    """Settings of a strategy; derive from it, one field a setting."""


class ClientSide(Plugin):
    """The client's part of an algorithm.

    Args:
        settings: the algorithm's own ``Settings``, by keyword, all optional.

    Raises:
        ConfigError: for a setting that is not allowed.
    """

    Settings: ClassVar[type[PluginSettings]] = StrategySettings
    LocalRule: ClassVar[type[Rule] | None] = None
    """How clients train, where that is part of the algorithm; None: by SGD, or by the rule that the run names."""
    personal: ClassVar[type[PersonalModels]] = PersonalModels
    """How clients use a model that they are sent."""
    priority: ClassVar[type[Priority]] = Priority
    """Which clients the algorithm serves first."""
    policy: ClassVar[str] = "appeal"
    """The participation policy of the algorithm's paper: the default."""
    needs_losses: ClassVar[bool] = False
    """Whether the server needs the clients' losses."""
    needs_weight: ClassVar[bool] = False
    """Whether the server needs what `report` returns; True in a class that writes `report`, unless that says."""
    needs_appeal: ClassVar[bool] = False
    """Whether the server needs to know which clients' requirement the model meets."""
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

    def report(self, measured: Measured) -> Claims:
        """Return a joined client's claims: its report besides the model.

        Args:
            measured: what the client measured of the model that was sent, and what it requires.
        """
        return {}


C = TypeVar("C", bound=ClientSide)


def of_run(kind: type[C], config: RunConfig, **shared: Any) -> C:
    """Return an algorithm with a run's settings.

    Args:
        kind: the algorithm's class.
        config: the run's settings.
        shared: the settings that all strategies share, by keyword.

    Raises:
        ConfigError: for a setting that is not allowed.
    """
    general = config.as_config()
    settings = {field: general[key] for field, key in kind.from_run.items()}
    settings |= {key.replace("-", "_"): value for key, value in config.section(kind.name).items()}
    return kind(**settings, **shared)


def reports(algorithm: ClientSide) -> bool:
    """Whether a joined client reports anything that it has to measure."""
    return type(algorithm).report is not ClientSide.report


def rule_name(algorithm: ClientSide) -> str:
    """Return the name of the local rule that clients follow, unless the run names another."""
    return algorithm.LocalRule.name if algorithm.LocalRule is not None else "sgd"


def check_use(strategy: type[ClientSide], rule: type[Rule], config: RunConfig) -> None:
    """Check that clients who use the best of what they have can train from it.

    Raises:
        ConfigError: a local rule that belongs to an algorithm starts from the shared model, or pulls to it.
    """
    if config.use == BEST and (rule.section or strategy.personal.keeps_models):
        raise ConfigError(
            f"use = '{BEST}' is not allowed with strategy = '{strategy.name}' and local-rule = '{rule.name}': a rule "
            "that belongs to an algorithm begins at the shared model"
        )


def personal_of(algorithm: ClientSide) -> PersonalModels:
    """Return how clients of an algorithm use a model that they are sent."""
    return type(algorithm).personal(algorithm)


def priority_of(algorithm: ClientSide) -> Priority:
    """Return which clients an algorithm serves first."""
    return type(algorithm).priority(algorithm)
