"""A task and a strategy given as objects, in place of names in the settings."""

import copy
from dataclasses import dataclass

from fedappeal.core.plugins import Plugin
from fedappeal.settings.config import ConfigError, RunConfig, Scalar
from fedappeal.tasks.task import Task
from strategies.rounds.strategy import Strategy


@dataclass(frozen=True)
class Given:
    """Objects that stand in for names.

    Attributes:
        task: the task; None: the one that the settings name.
        strategy: a template, copied for the server and for each client; None: the one that the settings name.
    """

    task: Task | None = None
    strategy: Strategy | None = None

    def named(self, config: RunConfig) -> RunConfig:
        """Return a run's settings with the objects' names, and with their own settings under these.

        Raises:
            ConfigError: where the settings give another value than an object has.
        """
        names: dict[str, str] = {}
        own: dict[str, Scalar] = {}
        if self.task is not None:
            names["task"] = self.task.name
            own |= _under_name(type(self.task), self.task.own.as_config(), config)
        if self.strategy is not None:
            names["strategy"] = self.strategy.name
            own |= _under_name(type(self.strategy), self.strategy.settings.as_config(), config)
        return config.model_copy(update=names).with_plugins(own.items())

    def strategy_of(self, config: RunConfig) -> Strategy | None:
        """Return a copy of the strategy for a run; None where the settings name one."""
        if self.strategy is None:
            return None
        made, general = copy.deepcopy(self.strategy), config.as_config()
        unset = {own: general[key] for own, key in made.from_run.items() if getattr(made.settings, own) is None}
        made.settings = made.settings.model_copy(update=unset)
        return made


NOTHING_GIVEN = Given()


def _under_name(plugin: type[Plugin], own: dict[str, Scalar], config: RunConfig) -> dict[str, Scalar]:
    name = plugin.settings_name()
    for key, value in config.section(name).items():
        if key not in own or own[key] != value:
            raise ConfigError(f"{name}.{key} = {value!r} is not allowed beside an object that has {own.get(key)!r}")
    return {f"{name}.{key}": value for key, value in own.items()}
