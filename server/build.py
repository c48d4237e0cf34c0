"""The plug-ins that a run's settings choose, whether its settings go together, and its strategy."""

import difflib
import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Any

from client.participation.behaviour import check_parts, parts_of
from client.participation.mixture import Mixture
from client.training.sgd import SGD
from fedappeal.core.local_rule import LocalRule
from fedappeal.core.plugins import (
    Allowed,
    Plugin,
    PluginSettings,
    Provenance,
    Registry,
    allow_options,
    is_ours,
    parse_section,
    runs_only_with,
)
from fedappeal.core.policy import Policy
from fedappeal.core.registry import LOCAL_RULES, POLICIES, REGISTRIES, REQUIREMENTS, STRATEGIES
from fedappeal.core.requirement import METRIC, RequirementKind
from fedappeal.core.training_settings import LocalTrainingSettings
from fedappeal.settings.config import ConfigError, RunConfig, Scalar
from fedappeal.settings.training import LearningRateSchedule
from fedappeal.tasks import TASKS
from server.given import NOTHING_GIVEN, Given
from strategies.rounds.shared import SharedSettings
from strategies.rounds.strategy import Strategy


@dataclass(frozen=True)
class Chosen:
    """The plug-ins of a run.

    Attributes:
        strategy: the server's.
        mixture: the policies by name, with their shares.
        policies: what clients do whose owner says nothing, by name; their behaviours too.
        rule: how they train.
        requirement: where their rho_k comes from.
    """

    strategy: type[Strategy]
    mixture: Mixture
    policies: dict[str, type[Policy]]
    rule: type[LocalRule]
    requirement: type[RequirementKind]

    @property
    def knows_mandatory(self) -> bool:
        """Whether mandatory rounds mean anything to a policy of the run."""
        return any(policy.mandatory for policy in self.policies.values())

    def plugins(self) -> list[type[Plugin]]:
        """Return all of them that have settings of their own."""
        return [self.strategy, *self.policies.values(), self.rule, self.requirement]


def chosen(config: RunConfig, given: Given = NOTHING_GIVEN) -> Chosen:
    """Return the plug-ins of a run; imports neither Flower nor torch for fedappeal's own.

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
    own_rule = strategy.LocalRule or SGD
    rule = own_rule if config.local_rule == "auto" else LOCAL_RULES.load(config.local_rule)
    return Chosen(
        strategy,
        mixture,
        policies,
        rule,
        REQUIREMENTS.load(config.requirement),
    )


def own_settings(config: RunConfig, plugin: type[Plugin]) -> PluginSettings:
    """Return the settings of one of a run's plug-ins, checked.

    Raises:
        ConfigError: for one that is not allowed.
    """
    return parse_section(plugin, config.section(plugin.settings_name()))


def unused_settings(
    config: RunConfig, beside: Mapping[str, type[Plugin]] = MappingProxyType({}), given: Given = NOTHING_GIVEN
) -> list[str]:
    """Return one line for each given plug-in setting that the run does not use.

    All are checked.

    Args:
        config: the run's settings.
        beside: plug-ins of other runs of the same sweep, by the name of their settings.
        given: objects in place of names.

    Raises:
        ConfigError: for a setting of no known plug-in, or one that its plug-in does not have.
    """
    used = {plugin.settings_name() for plugin in chosen(config, given).plugins()}
    others = [name for name in config.sections() if name not in used]
    if others:  # only then: a task of one's own may take seconds to import
        used.add(getattr(_task(config, given), "name", config.task))
    unused = []
    for name in others:
        if name in used:
            continue
        plugin = beside[name] if name in beside else _known(name, used)
        parse_section(plugin, config.section(name))
        unused += [f"{name}.{key} is not used by this run" for key in config.section(name)]
    return unused


def _known(name: str, used: Iterable[str]) -> type[Plugin]:
    """Return the plug-in under whose name settings stand.

    Raises:
        ConfigError: there is none.
    """
    for registry in REGISTRIES:
        if name in registry.names():
            plugin: type[Plugin] = registry.load(name)
            if (own := plugin.settings_name()) != name:
                raise ConfigError(f"{registry.kind} '{name}' has no settings of its own: they stand under '{own}'")
            return plugin
    if name in TASKS.names() and isinstance(task := TASKS.find(name), type):
        return task
    names = [*used, *(known for registry in REGISTRIES for known in registry.names()), *TASKS.names()]
    near = difflib.get_close_matches(name, names, n=1)
    raise ConfigError(f"unknown plug-in '{name}' in the settings" + (f"; did you mean '{near[0]}'?" if near else ""))


def check_names(plugins: Iterable[type[Plugin]]) -> None:
    """Check the names under which plug-ins have their settings.

    Raises:
        ConfigError: one that cannot be written in front of a setting, is a general setting's, or has two meanings.
    """
    known: dict[str, type[Plugin]] = {}
    for plugin in plugins:
        name = plugin.settings_name()
        if not re.fullmatch("[a-z0-9]+(-[a-z0-9]+)*", name):
            raise ConfigError(
                f"plug-in {plugin.__name__} is called '{name}': small letters, digits and '-' are allowed"
            )
        if name in (*RunConfig.keys(), "set"):
            raise ConfigError(f"plug-in {plugin.__name__} is called '{name}', as a general setting is: rename it")
        if (other := known.setdefault(name, plugin)).Settings is not plugin.Settings:
            raise ConfigError(f"plug-ins {other.__name__} and {plugin.__name__} are both called '{name}': rename one")


def check_settings(config: RunConfig, given: Given = NOTHING_GIVEN) -> Chosen:
    """Check that a run's settings go together; return its plug-ins.

    Raises:
        ConfigError: for an unknown plug-in or setting, or one that does not go with another.
    """
    run = chosen(config, given)
    strategy, name = run.strategy, run.strategy.name
    check_names(run.plugins())
    if strategy.needs_losses and not config.report_loss:
        raise ConfigError(
            f"report-loss = False is not allowed with strategy = '{name}': it needs the clients' losses"
        )
    if strategy.LocalRule is not None and config.local_rule != "auto" and run.rule is not strategy.LocalRule:
        raise ConfigError(
            f"local-rule = '{config.local_rule}' is not allowed with strategy = '{name}': it has a rule of its own"
        )
    if strategy.LocalRule is None and not run.rule.sends_model:
        raise ConfigError(
            f"local-rule = '{config.local_rule}' is not allowed with strategy = '{name}': its replies are not one "
            "trained model, which only the strategy that it belongs to can use"
        )
    if strategy.needs_everybody and config.clients_per_round:
        raise ConfigError(
            f"clients-per-round = {config.clients_per_round} is not allowed with strategy = '{name}': "
            "every round needs all clients (0)"
        )
    if config.loss_mode not in strategy.loss_modes:
        raise ConfigError(
            f"loss-mode = '{config.loss_mode}' is not allowed with strategy = '{name}': "
            f"{', '.join(strategy.loss_modes)}"
        )
    if strategy.compares_losses and run.requirement.of == METRIC:
        raise ConfigError(
            f"requirement = '{config.requirement}' is not allowed with strategy = '{name}': it compares a client's "
            "loss with rho_k, which has to be a loss (solo, fixed)"
        )
    strategy.check_influence(config.influence, config.aggregation)
    rule = run.rule(own_settings(config, run.rule))
    rule.check(LocalTrainingSettings.of(config.as_config()))
    for key, value in (("clipping-norm", config.clipping_norm), ("dp-epsilon", config.dp_epsilon)):
        if value and not rule.sends_model:
            raise ConfigError(
                f"{key} = {value:g} is not allowed with strategy = '{name}': a reply is not one trained model (0)"
            )
    if config.dp_epsilon and not config.clipping_norm:
        raise ConfigError(f"clipping-norm = 0 is not allowed with dp-epsilon = {config.dp_epsilon:g}: more than 0")
    for plugin in run.plugins():
        settings = own_settings(config, plugin)
        if issubclass(plugin, Policy) and any(config.section(plugin.name).get(key) for key in plugin.owner_alone):
            plugin(settings).check()
    strategy.check_run(config, own_settings(config, strategy))
    if given.strategy is None:
        # Only making it tells whether its settings go together.
        strategy.of_run(config, **config.part(LearningRateSchedule).model_dump())
    unused_settings(config, given=given)
    return run


def build_strategy(config: RunConfig, given: Given = NOTHING_GIVEN) -> Strategy:
    """Make the run's strategy.

    Args:
        config: the run's settings.
        given: objects in place of names.

    Raises:
        ConfigError: for an unknown name or a setting that is not allowed.
    """
    run = check_settings(config, given)
    shared = SharedSettings.of_run(config, run.knows_mandatory)
    if (made := given.strategy_of(config)) is None:
        return run.strategy.of_run(config, **shared.model_dump())
    made.shared = shared
    return made


def resolved_settings(config: RunConfig, given: Given = NOTHING_GIVEN) -> dict[str, Scalar]:
    """Return every setting of a run: general, and of each plug-in that it uses."""
    plugins, task = chosen(config, given).plugins(), _task(config, given)
    if isinstance(task, type) and issubclass(task, Plugin):
        plugins.append(task)
    settings: dict[str, Scalar] = {}
    for plugin in plugins:
        name = plugin.settings_name()
        settings |= {f"{name}.{key}": value for key, value in own_settings(config, plugin).as_config().items()}
    return {**settings, **config.as_config()}


def _task(config: RunConfig, given: Given) -> Any:
    """Return the task's class, or what makes it."""
    return TASKS.find(config.task) if given.task is None else type(given.task)


def packages_named(config: RunConfig, given: Given = NOTHING_GIVEN) -> list[str]:
    """Return the packages that a run's settings name: what a client's owner has to allow.

    Raises:
        ConfigError: for a name that is not known, or cannot be imported.
    """
    policies = chosen(config, given).mixture.parts
    return sorted({registry.package(name) for registry, name in _named(config, given, policies)} - {""})


def check_allowed(config: RunConfig, path: Path, allow: Iterable[str], given: Given = NOTHING_GIVEN) -> None:
    """Check that a call allows the code that a run's folder names; nothing is imported.

    Args:
        config: the run's settings.
        path: its folder.
        allow: packages; ``.``: the current folder is searched for them.
        given: objects in place of names.

    Raises:
        ConfigError: one line: what the run names, and the options that allow it.
    """
    if missing := _not_allowed(config, allow, given):
        whose = " and ".join(f"{kind} '{name}'" for kind, name, _ in missing)
        raise ConfigError(f"'{path}' holds a run of {whose}: {runs_only_with({*chain(*(m for *_, m in missing))})}")


def resume_command(config: RunConfig, path: Path | str, *options: str) -> str:
    """Return the command that continues a run, with the options that allow the code which its settings name.

    Args:
        config: the run's settings.
        path: its folder.
        options: further ones.
    """
    allow = allow_options(chain(*(lacking for *_, lacking in _not_allowed(config, (), NOTHING_GIVEN))))
    return shlex.join(["fedappeal", "resume", str(path), *options, *allow])


def _not_allowed(config: RunConfig, allow: Iterable[str], given: Given) -> list[tuple[str, str, list[str]]]:
    """Return kind and name of each plug-in that a call does not allow, and what the call would have to allow."""
    allowed, registries = Allowed.of(allow, by_call=True), (*REGISTRIES, TASKS)
    names = _named(config, given, Mixture.of_run(config, "always").parts)
    names += [(registry, name) for registry in registries for name in config.sections() if name in registry.names()]
    lacking = [(registry.kind, name, registry.missing(name, allowed)) for registry, name in names]
    return [plugin for plugin in lacking if plugin[-1]]


def files_named(config: RunConfig, given: Given = NOTHING_GIVEN) -> str:
    """Return the settings by which a run names files of its clients' devices, as an owner's ``set``.

    Where the user who starts a run is the owner of its clients, these are given to them.
    """
    policies = chosen(config, given).policies.values()
    named = ((each.name, key, config.section(each.name).get(key)) for each in policies for key in each.owner_alone)
    return " ".join(shlex.quote(f"{name}.{key}={value}") for name, key, value in named if value)


def foreign_plugins(config: RunConfig, given: Given = NOTHING_GIVEN) -> list[tuple[str, Provenance]]:
    """Return kind and provenance of each of a run's plug-ins that is not fedappeal's.

    A strategy's own local rule has no name by which a client could look for it: it comes with the strategy.
    """
    names = _named(config, given, chosen(config, given).mixture.parts)
    plugins = ((registry.kind, name, registry.find(name)) for registry, name in names)
    return [(kind, Provenance.of(name, plugin)) for kind, name, plugin in plugins if not is_ours(plugin)]


def _named(config: RunConfig, given: Given, policies: Iterable[str]) -> list[tuple[Registry[Any], str]]:
    """Return the names of a run's plug-ins, each with the registry that knows it."""
    rule = config.local_rule
    return [
        *([] if given.strategy else [(STRATEGIES, config.strategy)]),
        *((POLICIES, name) for name in policies),
        *([] if rule == "auto" else [(LOCAL_RULES, rule)]),
        (REQUIREMENTS, config.requirement),
        *([] if given.task else [(TASKS, config.task)]),
    ]
