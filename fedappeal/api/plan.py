"""From what a program gives to a run: its settings, and the objects in place of names."""

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset

from client.state.memory import client_of_partition
from fedappeal.api.client_data import PAIRS, clients_of
from fedappeal.api.measures import TASKS_OWN, Measures
from fedappeal.api.program_task import GivenTask, given_task
from fedappeal.api.tables import NO_COLUMNS, RowsByClient, TableColumns, rows_of_dataset, rows_of_frame
from fedappeal.api.whole_data import OF_PARTITION, WholeData, whole_of_datasets, whole_of_torch
from fedappeal.core.plugins import Registry, is_ours
from fedappeal.core.registry import LOCAL_RULES, POLICIES, REQUIREMENTS, STRATEGIES
from fedappeal.data.frames import package_of
from fedappeal.record.folder import CLIENTS
from fedappeal.runs.plan import RunPlan
from fedappeal.settings.config import ConfigError, RunConfig, TaskSettings
from fedappeal.tasks import TASKS, load_task
from fedappeal.tasks.task import ClientData, Task
from server.build import Objects, Plugins, run_plugins
from strategies.rounds.shared import SharedSettings
from strategies.rounds.strategy import Strategy, shared_of

_INSTEAD: tuple[tuple[type | tuple[type, ...], str], ...] = (
    ((str, bytes, PathLike), ": read the file first (pandas.read_csv, datasets.load_from_disk)"),
    (DataLoader, ": give its .dataset"),
    (IterableDataset, ", which has no length: collect its examples first"),
    (Iterator, ": list() collects it"),
)
NAME = "own"
"""What a task of own data is called where it has no name."""
_OF_SPLIT = frozenset({"train_share", "max_train_examples", "data_seed", "scale"})
_OF_DATA = _OF_SPLIT | {"clients", "unseen_clients", "share", "seed"}
"""Settings of a task that go with own data."""


@dataclass(frozen=True)
class OwnData:
    """A program's own data; converted once for all runs of a sweep.

    Attributes:
        data: pairs, a DataFrame or a Dataset.
        columns: which columns of a table are what.
    """

    data: Any
    columns: TableColumns = NO_COLUMNS

    @cached_property
    def clients(self) -> "list[ClientData] | RowsByClient | WholeData":
        """Each client's data, a table's rows before the split, or a whole data set.

        Raises:
            ConfigError: data of another kind, or that cannot be used.
        """
        kind, package = type(self.data), package_of(self.data)
        if package == "pandas":
            return rows_of_frame(self.data, self.columns)
        names_clients = bool(self.columns.client) or self.columns.partitioner is not None
        is_split = any(base.__name__ == "DatasetDict" for base in kind.__mro__)
        if is_split or (package == "datasets" and not names_clients):
            if names_clients:
                raise ConfigError(
                    "client and partitioner are not allowed beside a DatasetDict: give one of its splits"
                )
            return whole_of_datasets(self.data, self.columns)
        if package == "datasets":
            return rows_of_dataset(self.data, self.columns)
        if self.columns != NO_COLUMNS:
            raise ConfigError("client, label, features and partitioner go with a DataFrame or a datasets.Dataset")
        pair = isinstance(self.data, tuple) and len(self.data) == 2 and isinstance(self.data[0], Tensor | np.ndarray)
        if pair or (isinstance(self.data, Dataset) and not isinstance(self.data, IterableDataset)):
            return whole_of_torch(self.data)
        if not isinstance(self.data, Sequence | Mapping) or isinstance(self.data, str | bytes):
            instead = next((text for kinds, text in _INSTEAD if isinstance(self.data, kinds)), "")
            raise ConfigError(
                f"data is not allowed: a {kind.__name__}{instead}; {PAIRS}, a DataFrame, a datasets.Dataset, or a "
                "whole torch Dataset with clients= and partition= is"
            )
        return clients_of(self.data)

    @property
    def names(self) -> Sequence[str]:
        """The clients' names in the data, or their numbers."""
        clients = self.clients
        if isinstance(clients, WholeData):
            return ()
        if isinstance(self.data, Mapping):
            return [str(name) for name in self.data]
        return [str(k) for k in range(len(clients))] if isinstance(clients, list) else clients.names

    @property
    def facts(self) -> dict[str, Any]:
        """The data's entry in the run's folder: the clients' names, if distinct and not their numbers."""
        names = [*self.names]
        if names == [str(k) for k in range(len(names))] or len({*names}) < len(names):
            return {}
        return {CLIENTS: {client_of_partition(k): name for k, name in enumerate(names)}}

    def settings(self, settings: Mapping[str, Any], task: Any) -> dict[str, Any]:
        """Return the settings that follow from the data.

        Args:
            settings: those that are given, in snake case.
            task: what the data is to be called.

        Raises:
            ConfigError: a setting that means nothing for own data, or another number of clients.
        """
        if task is not None and (not isinstance(task, str) or task in TASKS.names() or ":" in task):
            name = task if isinstance(task, str) else getattr(task, "name", type(task).__name__)
            raise ConfigError(f"task = {name!r} is not allowed beside data: there it is what tables call the data")
        if isinstance(self.clients, WholeData):
            return {"task": task or NAME, **_of_whole(self.clients, settings)}
        if wrong := sorted((settings.keys() & TaskSettings.model_fields.keys()) - _OF_DATA):
            raise ConfigError(f"{wrong[0]} = {settings[wrong[0]]!r} is not allowed beside data, which is shared out")
        if isinstance(self.clients, list) and (wrong := sorted(settings.keys() & _OF_SPLIT)):
            raise ConfigError(f"{wrong[0]} is not allowed beside (train, test) pairs, which are taken as they are")
        total, unseen = len(self.names), settings.get("unseen_clients", 0)
        if not isinstance(unseen, int) or not 0 <= unseen < total:
            raise ConfigError(f"unseen_clients = {unseen} is not allowed: 0 to {total - 1} of the data's {total}")
        if settings.get("clients", total - unseen) != total - unseen:
            of_which = f", {unseen} of them unseen" if unseen else ""
            raise ConfigError(f"clients = {settings['clients']} is not allowed: the data has {total}{of_which}")
        return {"task": task or NAME, "clients": total - unseen}


def _of_whole(whole: WholeData, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings with which a whole data set is dealt out.

    Raises:
        ConfigError: one is missing, or means nothing for such data.
    """
    if missing := [name for name in ("clients", "partition") if name not in settings]:
        raise ConfigError(
            f"{missing[0]} is missing: the data names no clients; clients=10, partition='dirichlet' deals it out "
            "(of a table client= or partitioner= says whose a row is)"
        )
    allowed = _OF_DATA | OF_PARTITION | {"min_examples"}
    if wrong := sorted((settings.keys() & TaskSettings.model_fields.keys()) - allowed):
        raise ConfigError(f"{wrong[0]} = {settings[wrong[0]]!r} is not allowed beside data of your own")
    if whole.tests and "train_share" in settings:
        raise ConfigError("train_share is not allowed beside a DatasetDict with a split test")
    return {}


@dataclass(frozen=True)
class TaskParts:
    """A program's own parts of a task.

    Attributes:
        data: None: the task's.
        model: see `fedappeal.api.program_task.GivenModel`; None: the task's.
        measures: loss and metrics.
    """

    data: OwnData | None = None
    model: Any = None
    measures: Measures = TASKS_OWN

    @classmethod
    def of(cls, data: Any, columns: TableColumns, model: Any, measures: Measures) -> "TaskParts":
        """Return the parts that a program gives.

        Raises:
            ConfigError: columns without data.
        """
        if data is None and columns != NO_COLUMNS:
            raise ConfigError("data is missing: client, label, features and partitioner go with it")
        return cls(None if data is None else OwnData(data, columns), model, measures)

    @property
    def given(self) -> bool:
        """Whether the program gives any part."""
        return self.data is not None or self.model is not None or self.measures != TASKS_OWN

    def task(self, config: RunConfig, base: Task | None, data_dir: str) -> GivenTask:
        """Return the task for a run.

        Args:
            config: the run's settings.
            base: a program's own task object; None: the one that the settings name, where there are no own data.
            data_dir: folder of a known task's data set.

        Raises:
            ConfigError: parts that do not fit.
        """
        settings = config.task_settings()
        if self.data is None:
            loaded = base or load_task(settings, data_dir)
            return given_task(settings, loaded, self.model, self.measures)
        clients = self.data.clients
        if isinstance(clients, list):
            return given_task(settings, clients, self.model, self.measures)
        shared, scaler = clients.shared_out(settings)
        form = clients.form
        task = given_task(settings, shared, self.model, self.measures, form.class_names)
        task.feature_names, task.categories, task.scaler = form.feature_names, form.categories, scaler
        task.standardises_tables = scaler is not None
        return task


def plugin_settings_of(given: Any) -> dict[str, Any]:
    """Return the settings of plug-ins that a program gives as ``set``; None: none.

    Raises:
        ConfigError: it is no dict.
    """
    if not isinstance(given, Mapping | None):
        raise ConfigError(f"set = {given!r} is not allowed: a dict of settings of plug-ins, by 'NAME.KEY', is")
    return {str(key): value for key, value in (given or {}).items()}


NO_FOLDER = Path()
"""The folder of a plan before it starts."""
_UNSET = {"clients_per_round": 0, "mandatory_rounds": -1}
"""What the run's settings have where the shared ones have None."""
_HIDDEN = frozenset({"out", "resume", "schedule_rounds", "plugins"})
"""Settings of a run that are no arguments of the same meaning."""


def facts_of(given: Objects) -> dict[str, Any]:
    """Return the entry of a program's objects in the run's folder."""
    facts: dict[str, Any] = {}
    task, strategy = given.task, given.strategy
    if task is not None:
        facts["task"] = task.parts if isinstance(task, GivenTask) else {"task": task.fingerprint}
    functions = strategy is not None and any(map(callable, vars(strategy).values()))
    if strategy is not None and (functions or not is_ours(type(strategy))):  # name and settings do not say all
        facts["strategy"] = type(strategy).__qualname__
    return facts


def plan_of(
    strategy: Any, task: Any, parts: TaskParts, settings: Mapping[str, Any], plugins: Mapping[str, Any], data_dir: str
) -> RunPlan:
    """Return the checked plan of a run from a program's arguments; without a folder.

    Args:
        strategy: a name, a class, or an object that is a template.
        task: the same; None: the default, or own data.
        parts: own model, data, loss and metrics.
        settings: general settings in snake case.
        plugins: settings of plug-ins by ``NAME.KEY``.
        data_dir: folder of the task's data set.

    Raises:
        ConfigError: for what is not allowed, or is given twice.
    """
    if wrong := sorted(settings.keys() & _HIDDEN):
        raise ConfigError(f"unknown setting '{wrong[0]}'")
    general = with_names({key: _plain(value) for key, value in settings.items()})
    sections = {key.replace("_", "-"): _plain(value) for key, value in plugins.items()}
    if wrong := [key for key in sections if not all(key.partition("."))]:
        raise ConfigError(f"set = {{{wrong[0]!r}: ...}} is not allowed: 'NAME.KEY', a setting of a plug-in")
    template, name = _strategy(strategy, sections)
    if template is not None:
        general |= _of_template(template, general, sections)
    built, task_name = _task(task)
    if built is not None:
        general |= _of_task(built, general)
    if parts.data is not None:
        general |= parts.data.settings(general, task)
    elif task_name is not None:
        general["task"] = task_name
    if isinstance(parts.model, str) and parts.data is None:
        general["model"], parts = parts.model, replace(parts, model=None)
    config = RunConfig.parse({**general, **({"strategy": name} if name else {}), **sections})
    given = _objects(config, template, task, parts, data_dir)
    config = given.named(config)
    plan = RunPlan.of(config, NO_FOLDER, given=given, data_dir=data_dir)
    unused = plan.unused
    if parts.given and parts.data is None and given.task:  # it uses its settings, though the run's task is made of it
        unused = tuple(line for line in unused if not line.startswith(f"{given.task.name}."))
    return replace(plan, unused=unused, facts=facts_of(given) | (parts.data.facts if parts.data else {}))


def chosen_of(strategy: Any, settings: Mapping[str, Any]) -> Plugins:
    """Return a run's plug-ins, before their own settings are known.

    Args:
        strategy: as `plan_of` takes it.
        settings: general settings in snake case.

    Raises:
        ConfigError: for what is not allowed.
    """
    template, name = _strategy(strategy, {})
    names = {key: value for key, value in with_names(settings).items() if key in CLASSES}
    config = RunConfig.parse({**names, **({"strategy": name} if name else {})})
    return run_plugins(config, Objects(None, template))


def given_again(config: RunConfig, strategy: Any, task: Any, parts: TaskParts, data_dir: str) -> Objects:
    """Return a program's objects for a run with recorded settings; arguments as `plan_of`.

    Raises:
        ConfigError: for what is not allowed.
    """
    return _objects(config, _strategy(strategy, config.as_config())[0], task, parts, data_dir)


def _objects(config: RunConfig, template: Strategy | None, task: Any, parts: TaskParts, data_dir: str) -> Objects:
    """Return the objects of a run with these settings; ``template``: its strategy's."""
    built, name = _task(task)
    if isinstance(task, type) and not name:
        built = task(config.task_settings(), Path(data_dir) if data_dir else None)
    return Objects(parts.task(config, built, data_dir) if parts.given else built, template)


def _strategy(strategy: Any, sections: dict[str, Any]) -> tuple[Strategy | None, str]:
    """Return a strategy's template or name.

    Settings of a class without a name are taken out of ``sections``.
    """
    if strategy is None or isinstance(strategy, str):
        return None, strategy or ""
    if isinstance(strategy, Strategy):
        return copy.deepcopy(strategy), ""
    if not isinstance(strategy, type) or not issubclass(strategy, Strategy):
        raise ConfigError(f"strategy = {strategy!r} is not allowed: a name, or a class or object of a Strategy")
    if name := name_of(STRATEGIES, strategy):
        return None, name
    section = {key: sections.pop(key) for key in list(sections) if key.partition(".")[0] == strategy.name}
    return strategy(**{key.partition(".")[2].replace("-", "_"): value for key, value in section.items()}), ""


def _of_template(template: Strategy, settings: Mapping[str, Any], sections: Mapping[str, Any]) -> dict[str, Any]:
    """Return the general settings that a strategy object was given.

    Raises:
        ConfigError: one that is given twice.
    """
    kind, shared = type(template).__name__, shared_of(template)
    values = {}
    for field in SharedSettings.model_fields:
        if field in shared.model_fields_set:
            value = getattr(shared, field)
            if field in settings:
                raise ConfigError(f"{field} is given twice: {settings[field]!r} beside {kind}({field}={value!r})")
            values[field] = _UNSET[field] if value is None else value
    for field in template.settings.model_fields_set:
        key = f"{template.name}.{field.replace('_', '-')}"
        if key in sections:
            value = getattr(template.settings, field)
            raise ConfigError(f"{key} is given twice: {sections[key]!r} in set, beside {kind}({field}={value!r})")
    return values


def _task(task: Any) -> tuple[Task | None, str | None]:
    """Return a task object or a task's name; neither for a nameless class."""
    if task is None or isinstance(task, str):
        return None, task
    if isinstance(task, Task):
        return task, None
    if not isinstance(task, type) or not issubclass(task, Task):
        raise ConfigError(f"task = {task!r} is not allowed: a name, or a class or object of a fedappeal Task")
    return None, name_of(TASKS, task) or None


def _of_task(task: Task, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the general settings that a task object was given.

    Raises:
        ConfigError: one that is given twice; the seed may be, because the run draws more than data.
    """
    values = {}
    for field in task.settings.model_fields_set - {"task", "plugins"}:
        value = getattr(task.settings, field)
        if field not in settings:
            values[field] = value
        elif field != "seed" and settings[field] != value:
            raise ConfigError(
                f"{field} is given twice: {settings[field]!r} beside a {type(task).__name__} with {value!r}"
            )
    return values


def _plain(value: Any) -> Any:
    """Return a NumPy number as Python's."""
    return value.item() if hasattr(value, "item") and not hasattr(value, "__len__") else value


CLASSES: Mapping[str, Registry[Any]] = {
    "participation": POLICIES,
    "local_rule": LOCAL_RULES,
    "requirement": REQUIREMENTS,
}
"""Settings that name a plug-in."""


def name_of(registry: Registry[Any], kind: type) -> str:
    """Return the name under which a class is found; empty if no name finds it."""
    for name in registry.built_in:
        if registry.load(name) is kind:
            return name
    name = f"{kind.__module__}:{kind.__qualname__}"
    try:
        return name if registry.find(name) is kind else ""
    except ConfigError:
        return ""


def with_names(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings with plug-in classes replaced by names.

    ``participation`` may be a dict of shares.

    Raises:
        ConfigError: a class of another kind, or one that cannot be found by a name.
    """
    renamed = dict(settings)
    for setting, registry in CLASSES.items():
        value = renamed.get(setting)
        if setting == "participation" and isinstance(value, Mapping):
            shares = ((_name(setting, registry, policy), share) for policy, share in value.items())
            renamed[setting] = ",".join(f"{name}={share}" for name, share in shares)
        elif value is not None and not isinstance(value, str):
            renamed[setting] = _name(setting, registry, value)
    return renamed


def _name(setting: str, registry: Registry[Any], value: Any) -> str:
    if isinstance(value, str):
        return value
    if not isinstance(value, type) or not issubclass(value, registry.base_class):
        raise ConfigError(f"{setting} = {value!r} is not allowed: a name, or a subclass of {registry.base_name}")
    if not (name := name_of(registry, value)):
        raise ConfigError(
            f"{setting} = {value.__qualname__} is not allowed: define the class at the top of a module or a notebook"
        )
    return name
