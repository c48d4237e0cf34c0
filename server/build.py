"""The plug-ins that a run's settings or objects choose, whether its settings go together, and its strategy."""

import copy
import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, NoReturn

from client.participation.behaviour import Mixture, check_parts, parts_of
from client.training.sgd import SGD
from fedappeal.core.algorithm import check_use, of_run
from fedappeal.core.faults import check_class, make_checked
from fedappeal.core.local_rule import LocalRule
from fedappeal.core.plugins import Plugin, PluginSettings, Provenance, Registry, is_ours, parse_section
from fedappeal.core.policy import Policy
from fedappeal.core.registry import LOCAL_RULES, POLICIES, REGISTRIES, REQUIREMENTS, STRATEGIES
from fedappeal.core.requirement import METRIC, RequirementKind
from fedappeal.settings.config import ConfigError, RunConfig, Scalar
from fedappeal.settings.model import did_you_mean
from fedappeal.settings.rounds import AUTO
from fedappeal.tasks import MODELS, TASKS, is_own_model, load_task
from fedappeal.tasks.flower_app import FlowerApp, is_client_app
from fedappeal.tasks.share import NONE
from fedappeal.tasks.task import Task
from strategies.rounds.algorithm import check_influence
from strategies.rounds.shared import SharedSettings
from strategies.rounds.strategy import Strategy


@dataclass(frozen=True)
class Objects:
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
        section: dict[str, Scalar] = {}
        if self.task is not None:
            names["task"] = self.task.name
            section |= _under_name(type(self.task), self.task.own.as_config(), config)
        if self.strategy is not None:
            names["strategy"] = self.strategy.name
            section |= _under_name(type(self.strategy), self.strategy.settings.as_config(), config)
        return config.model_copy(update=names).with_plugins(section.items())

    def strategy_of(self, config: RunConfig) -> Strategy | None:
        """Return a run's copy of the strategy object; None if the settings name one."""
        if self.strategy is None:
            return None
        made, general = copy.deepcopy(self.strategy), config.as_config()
        unset = {field: general[key] for field, key in made.from_run.items() if getattr(made.settings, field) is None}
        made.settings = made.settings.model_copy(update=unset)
        return made


NO_OBJECTS = Objects()


def check_real(config: RunConfig) -> None:
    """Check that a run can have real clients.

    Raises:
        ConfigError: some of them are to attack, or nothing is shared, which only a simulation's can.
    """
    if config.share == NONE:
        raise ConfigError(
            "share = 'none' is not allowed in a run of real clients: nothing would travel; it is the control of a "
            "simulation (`fedappeal simulate`)"
        )
    if config.byzantine_share:
        raise ConfigError(
            f"byzantine-share = {config.byzantine_share:g} is not allowed in a run of real clients: attackers are "
            "simulated (`fedappeal simulate`)"
        )


@dataclass(frozen=True)
class Plugins:
    """A run's settings and the plug-ins that they name.

    Attributes:
        config: the settings.
        given: objects in place of names.
        strategy: the server's.
        mixture: the policies by name, with their shares.
        policies: what clients do whose owner says nothing, by name; their behaviours too.
        rule: how they train.
        requirement: where their rho_k comes from.
        model: what makes a model of the author's own; None: the model is fedappeal's, a library's or an object.
    """

    config: RunConfig
    given: Objects
    strategy: type[Strategy]
    mixture: Mixture
    policies: dict[str, type[Policy]]
    rule: type[LocalRule]
    requirement: type[RequirementKind]
    model: Any = None

    def __reduce__(self) -> Any:
        """Another process resolves the plug-ins again."""
        return run_plugins, (self.config, self.given)

    @cached_property
    def knows_mandatory(self) -> bool:
        """Whether mandatory rounds mean anything to a policy of the run."""
        return any(policy.mandatory for policy in self.policies.values())

    @cached_property
    def unbounded(self) -> str:
        """Reason why one client's influence cannot be bounded; empty: it can."""
        return self.strategy.unbounded or self.strategy.influence.lack(self.config, self.settings_of(self.strategy))

    @cached_property
    def plugins(self) -> tuple[type[Plugin], ...]:
        """All plug-ins with settings of their own."""
        return self.strategy, *self.policies.values(), self.rule, self.requirement

    @cached_property
    def task(self) -> Any:
        """The task's class or maker."""
        if self.given.task is not None:
            return type(self.given.task)
        found = TASKS.find(self.config.task)
        return FlowerApp if is_client_app(found) else found

    def settings_of(self, plugin: type[Plugin]) -> PluginSettings:
        """Return the settings of one plug-in, checked.

        Raises:
            ConfigError: for one that is not allowed.
        """
        return parse_section(plugin, self.config.section(plugin.settings_name()))

    def all_settings(self) -> dict[str, Scalar]:
        """Return every setting of the run: general, and of each plug-in that it uses."""
        of_task = [self.task] if isinstance(self.task, type) and issubclass(self.task, Plugin) else []
        settings = {
            f"{plugin.settings_name()}.{key}": value
            for plugin in (*self.plugins, *of_task)
            for key, value in self.settings_of(plugin).as_config().items()
        }
        return {**settings, **self.config.as_config()}

    def unused_settings(self, beside: Mapping[str, type[Plugin]] = MappingProxyType({})) -> list[str]:
        """Return one line for each given plug-in setting that the run does not use.

        All are checked.

        Args:
            beside: plug-ins of other runs of the same sweep, by the name of their settings.

        Raises:
            ConfigError: for a setting of no known plug-in, or one that its plug-in does not have.
        """
        used = {plugin.settings_name() for plugin in self.plugins}
        unchecked = [name for name in self.config.sections() if name not in used]
        if unchecked:  # only then: a task of one's own may take seconds to import
            used.add(getattr(self.task, "name", self.config.task))
        unused = []
        for name in unchecked:
            if name in used:
                continue
            section = self.config.section(name)
            parse_section(beside[name] if name in beside else _plugin_of_section(name, used), section)
            unused += [f"{name}.{key} is not used by this run" for key in section]
        return unused

    def load_task(self, data_dir: Path | str | None = None) -> Task:
        """Return the run's task; errors as `fedappeal.tasks.load_task`."""
        return self.given.task or load_task(self.config.task_settings(), data_dir)

    def packages(self) -> list[str]:
        """Return the packages of named code, which a client's owner must allow."""
        return sorted({registry.package(name) for registry, name in self._plugin_names()} - {""})

    def owner_files(self) -> str:
        """Return the settings that name files of the clients' devices, as an owner's ``set``.

        Where the user who starts a run is the owner of its clients, these are given to them.
        """
        files = (
            (policy.name, key, self.config.section(policy.name).get(key))
            for policy in self.policies.values()
            for key in policy.owner_alone
        )
        return " ".join(shlex.quote(f"{name}.{key}={value}") for name, key, value in files if value)

    def foreign(self) -> list[tuple[str, Provenance]]:
        """Return kind and provenance of each plug-in that is not fedappeal's.

        A strategy's own local rule has no name by which a client could look for it: it comes with the strategy.
        """
        plugins = (
            (registry.kind, name, self.task if registry is TASKS else registry.find(name))
            for registry, name in self._plugin_names()
        )
        return [(kind, Provenance.of(name, plugin)) for kind, name, plugin in plugins if not is_ours(plugin)]

    def _plugin_names(self) -> list[tuple[Registry[Any], str]]:
        return named_plugins(self.config, self.given, self.mixture.parts)

    def check(self) -> None:
        """Check that the settings go together.

        Raises:
            ConfigError: for an unknown plug-in or setting, or one that does not go with another.
        """
        config, strategy, rule = self.config, self.strategy, self.rule

        def refuse(setting: str, reason: str) -> NoReturn:
            raise ConfigError(f"{setting} is not allowed with strategy = '{strategy.name}': {reason}")

        check_names(self.plugins)
        config.check_tuning(config.tuning_steps)
        made: dict[type[Plugin], Any] = {
            plugin: make_checked(plugin, partial(plugin, self.settings_of(plugin))) for plugin in self.plugins[1:]
        }
        if strategy.needs_losses and not config.report_loss:
            refuse("report-loss = False", "it needs the clients' losses")
        if strategy.LocalRule is not None and config.local_rule != AUTO and rule is not strategy.LocalRule:
            refuse(f"local-rule = '{config.local_rule}'", "it has a rule of its own")
        if strategy.LocalRule is None and not rule.sends_model:
            reason = "its replies are not one trained model, which only the strategy that it belongs to can use"
            refuse(f"local-rule = '{config.local_rule}'", reason)
        if strategy.needs_everybody and config.clients_per_round:
            refuse(f"clients-per-round = {config.clients_per_round}", "every round needs all clients (0)")
        if config.loss_mode not in strategy.loss_modes:
            refuse(f"loss-mode = '{config.loss_mode}'", ", ".join(strategy.loss_modes))
        if strategy.compares_losses and self.requirement.of == METRIC:
            reason = "it compares a client's loss with rho_k, which has to be a loss (solo, fixed)"
            refuse(f"requirement = '{config.requirement}'", reason)
        check_influence(strategy, config.influence, config.aggregation)
        made[rule].check(config.training)
        for key, value in (("clipping-norm", config.clipping_norm), ("dp-epsilon", config.dp_epsilon)):
            if value and not rule.sends_model:
                refuse(f"{key} = {value:g}", "a reply is not one trained model (0)")
        if config.dp_epsilon and not config.clipping_norm:
            raise ConfigError(
                f"clipping-norm = 0 is not allowed with dp-epsilon = {config.dp_epsilon:g}: more than 0"
            )
        for policy in self.policies.values():
            if any(config.section(policy.name).get(key) for key in policy.owner_alone):
                made[policy].check()
        check_use(strategy, rule, config)
        strategy.check_run(config, self.settings_of(strategy))
        if self.given.strategy is None:  # only making it tells whether its settings go together
            make_checked(strategy, self.build)
        self.unused_settings()

    def shared_settings(self) -> SharedSettings:
        """Return the settings of the run that all strategies share."""
        return SharedSettings.of_run(self.config, self.knows_mandatory)

    def build(self) -> Strategy:
        """Return the run's strategy; the settings are checked."""
        made = self.given.strategy_of(self.config)
        return of_run(self.strategy, self.config, **self.shared_settings().model_dump()) if made is None else made


def run_plugins(config: RunConfig, given: Objects = NO_OBJECTS) -> Plugins:
    """Return a run's settings with its plug-ins.

    Imports neither Flower nor torch for fedappeal's own.

    Args:
        config: names them.
        given: objects in place of names.

    Raises:
        ConfigError: for a name that is not known, or cannot be imported.
    """
    strategy = STRATEGIES.load(config.strategy) if given.strategy is None else type(given.strategy)
    mixture = Mixture.of_run(config, strategy.policy)
    policies = {name: POLICIES.load(name) for name in mixture.parts}
    for name in mixture.names:
        check_parts(name, [policies[part] for part in parts_of(name)])
    own_rule: type[LocalRule] = strategy.LocalRule or SGD
    rule = own_rule if config.local_rule == AUTO else LOCAL_RULES.load(config.local_rule)
    model = MODELS.maker(config.model) if given.task is None and is_own_model(config.model) else None
    run = Plugins(config, given, strategy, mixture, policies, rule, REQUIREMENTS.load(config.requirement), model)
    for plugin in run.plugins:
        check_class(plugin)
    return run


def check_settings(config: RunConfig, given: Objects = NO_OBJECTS) -> Plugins:
    """Return the plug-ins of a run whose settings go together; errors as `run_plugins` and `Plugins.check`."""
    run = run_plugins(config, given)
    run.check()
    return run


def _plugin_of_section(name: str, used: Iterable[str]) -> type[Plugin]:
    """Return the plug-in under whose name settings stand.

    Raises:
        ConfigError: there is none.
    """
    if name == FlowerApp.name:
        return FlowerApp
    # Fedappeal's own first: for other names the entry points of every installed package are read.
    for registry in sorted(REGISTRIES, key=lambda registry: name not in registry.built_in):
        if name in registry.built_in or name in registry.names():
            plugin: type[Plugin] = registry.load(name)
            if (key := plugin.settings_name()) != name:
                raise ConfigError(f"{registry.kind} '{name}' has no settings of its own: they stand under '{key}'")
            return plugin
    if name in TASKS.names() and isinstance(task := TASKS.find(name), type):
        return task
    names = [*used, *(choice for registry in REGISTRIES for choice in registry.names()), *TASKS.names()]
    raise ConfigError(f"unknown plug-in '{name}' in the settings{did_you_mean(name, names)}")


def _under_name(plugin: type[Plugin], own: dict[str, Scalar], config: RunConfig) -> dict[str, Scalar]:
    name = plugin.settings_name()
    for key, value in config.section(name).items():
        if key not in own or own[key] != value:
            raise ConfigError(f"{name}.{key} = {value!r} is not allowed beside an object that has {own.get(key)!r}")
    return {f"{name}.{key}": value for key, value in own.items()}


def check_names(plugins: Iterable[type[Plugin]]) -> None:
    """Check the names under which plug-ins have their settings.

    Raises:
        ConfigError: one that cannot be written in front of a setting, is a general setting's, or has two meanings.
    """
    by_name: dict[str, type[Plugin]] = {}
    for plugin in plugins:
        name = plugin.settings_name()
        if not re.fullmatch("[a-z0-9]+(-[a-z0-9]+)*", name):
            raise ConfigError(
                f"plug-in {plugin.__name__} is called '{name}': small letters, digits and '-' are allowed"
            )
        if name in (*RunConfig.keys(), "set"):
            raise ConfigError(f"plug-in {plugin.__name__} is called '{name}', as a general setting is: rename it")
        if (first := by_name.setdefault(name, plugin)).Settings is not plugin.Settings:
            raise ConfigError(f"plug-ins {first.__name__} and {plugin.__name__} are both called '{name}': rename one")


def named_plugins(config: RunConfig, given: Objects, policies: Iterable[str]) -> list[tuple[Registry[Any], str]]:
    """Return the names of a run's plug-ins, each with the registry that knows it."""
    rule = config.local_rule
    return [
        *([] if given.strategy else [(STRATEGIES, config.strategy)]),
        *((POLICIES, name) for name in policies),
        *([] if rule == AUTO else [(LOCAL_RULES, rule)]),
        (REQUIREMENTS, config.requirement),
        *([] if given.task else [(TASKS, config.task)]),
        *([(MODELS, config.model)] if given.task is None and is_own_model(config.model) else []),
    ]
