"""`fedappeal list`: what a run can name, and what one plug-in is, with its settings.

All of it is read off the classes; those that come with fedappeal load neither torch nor Flower.
"""

import inspect
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import tomli_w
from pydantic.fields import FieldInfo

from fedappeal.core.local_rule import LocalRule
from fedappeal.core.plugins import Plugin, Registry
from fedappeal.core.registry import LOCAL_RULES, POLICIES, REQUIREMENTS, STRATEGIES
from fedappeal.record.columns import column_rows
from fedappeal.reproductions import experiment_names
from fedappeal.settings.config import ConfigError, RunConfig, Scalar
from fedappeal.settings.model import choices, did_you_mean
from fedappeal.system.wording import in_columns
from fedappeal.tasks import MODELS, TASKS
from fedappeal.views.tracking.tracker import TRACKERS

KINDS: tuple[tuple[str, str, Registry[Any]], ...] = (
    ("strategies", "--strategy", STRATEGIES),
    ("policies", "--participation", POLICIES),
    ("local rules", "--local-rule", LOCAL_RULES),
    ("requirements", "--requirement", REQUIREMENTS),
    ("tasks", "--task", TASKS),
    ("trackers", "--track", TRACKERS),
)
_ANY: Registry[Plugin] = Registry(kind="name", group="", base=Plugin, built_in={})
"""Finds ``package.module:Name`` of any kind."""
_ATTRIBUTES: Mapping[str, Mapping[str, str]] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
"""The attributes that are shown, by kind and title."""
_TRAINING = {True: "side by side", False: "one by one"}


def all_names() -> Iterator[str]:
    """Yield the lines of `fedappeal list`: each plug-in with its summary, and the experiments."""
    width = max(len(name) for _, _, registry in KINDS for name in registry.names())
    for title, option, registry in KINDS:
        yield f"{title} ({option})"
        for name in registry.names():
            yield f"  {name:<{width}}  {summary(registry, name)}"
    yield "experiments (fedappeal reproduce)"
    yield f"  {', '.join(experiment_names())}"
    yield "`fedappeal list NAME` shows a plug-in's settings; your own is package.module:Name"


def summary(registry: Registry[Any], name: str) -> str:
    """Return a plug-in's summary line; a local rule's with how simulations train."""
    try:
        plugin = registry.find(name)
    except ConfigError as error:  # an installed package that is broken must not hide the others
        return str(error)
    return f"{_training(plugin)}: {_first_line(plugin)}" if _is(plugin, LocalRule) else _first_line(plugin)


def _first_line(plugin: Any) -> str:
    """Return a plug-in's first docstring line; a task may be a function."""
    line: str = plugin.summary_line() if _is(plugin, Plugin) else (inspect.getdoc(plugin) or "").partition("\n")[0]
    return line


def _training(rule: type[LocalRule]) -> str:
    return _TRAINING[rule.batched]


def description(name: str) -> Iterator[str]:
    """Yield the lines of `fedappeal list NAME`: summary, attributes and settings.

    Args:
        name: one of fedappeal's, of an installed package, or ``package.module:Name``.

    Raises:
        ConfigError: one line: no plug-in is called so.
    """
    if name == "columns":
        yield from _in_columns([("column", "unit", "better", "averaged", "what it is"), *column_rows()])
        return
    for number, (kind, plugin) in enumerate(plugins_of(name)):
        if number:
            yield ""
        yield f"{kind} {name}"
        yield f"  {_first_line(plugin)}"
        yield from _in_columns(_attributes(kind, plugin))
        yield from _settings(plugin)


def plugins_of(name: str) -> list[tuple[str, Any]]:
    """Return the plug-ins of a name, each with its kind: the setting that names it.

    Raises:
        ConfigError: one line: no plug-in is called so, or it cannot be imported.
    """
    registries = (*(registry for _, _, registry in KINDS), MODELS)
    if ":" in name:
        plugin = _ANY.find(name)
        kinds = [registry.kind for registry in registries[:-1] if _is(plugin, registry.base_class)]
        if not kinds and (_is(plugin, MODELS.base_class) or isinstance(plugin, MODELS.base_class)):  # loads torch
            kinds = [MODELS.kind]
        if not kinds and callable(plugin) and not isinstance(plugin, type):  # a task takes (settings, data_dir)
            with suppress(ValueError):  # a built-in function without a signature makes neither
                makes_model = inspect.signature(plugin).parameters.keys() <= {"input_shape", "num_classes"}
                kinds = [MODELS.kind if makes_model else TASKS.kind]
        if not kinds:
            bases = ", ".join(registry.base_name for registry in registries)
            raise ConfigError(f"name = '{name}' is not allowed: it is no subclass of {bases}")
        return [(kind, plugin) for kind in kinds]
    plugins = [(registry.kind, registry.find(name)) for registry in registries if name in registry.names()]
    if not plugins:
        names = sorted({name for registry in registries for name in registry.names()})
        hint = did_you_mean(name, names, "{}") or "`fedappeal list` shows all"
        raise ConfigError(f"name = '{name}' is not allowed: no plug-in is called so; {hint}")
    return plugins


def _is(plugin: Any, base: type) -> bool:
    return isinstance(plugin, type) and issubclass(plugin, base)


def _attributes(kind: str, plugin: Any) -> list[tuple[str, str]]:
    """Return a plug-in's attributes by name; empty for a task that is a function."""
    shown = _ATTRIBUTES.get(kind, {}) if isinstance(plugin, type) else {}
    return [(title, _attribute(plugin, name)) for title, name in shown.items()]


def _attribute(plugin: Any, name: str) -> str:
    value = getattr(plugin, name, None)
    if name in _WORDS:
        return _WORDS[name](value)
    return value if isinstance(value, str) else " | ".join(value) if isinstance(value, tuple) else _yes(value)


def _yes(value: object) -> str:
    return "yes" if value else "no"


_WORDS: Mapping[str, Callable[[Any], str]] = {
    "LocalRule": lambda rule: f"its own, {rule.name} ({_training(rule)})" if rule else "sgd, or any (--local-rule)",
    "survey": lambda survey: _yes(survey is not None),
    "batched": _TRAINING.__getitem__,
    "of": lambda of: f"a{'n' * (of[0] in 'aeiou')} {of}",
    "input_shape": lambda shape: "x".join(map(str, shape)) if shape else "by the settings",
    "num_classes": lambda classes: str(classes or "by the settings"),
    "metric": lambda metric: f"{metric.name}, {'higher' if metric.higher_is_better else 'lower'} is better",
    "default_model": lambda model: model or "the task's own",
}
"""The words for values that are neither texts nor yes or no, by attribute."""


def _settings(plugin: Any) -> Iterator[str]:
    """Yield a line a setting: full key, default and description."""
    if not _is(plugin, Plugin) or not plugin.Settings.keys():
        yield "  no settings of its own"
        return
    name = plugin.settings_name()
    yield f"  settings (--set {name}.KEY=VALUE)"
    rows = []
    for key, field in plugin.Settings.described().items():
        allowed = f" ({choices(field)})" if choices(field) else ""
        rows.append((f"  {name}.{key}", default_of(field), f"{field.description or ''}{allowed}"))
    yield from _in_columns(rows)


def default_of(field: FieldInfo) -> str:
    """Return a setting's default as shown text."""
    value = field.default
    if field.is_required() or value is None:
        return "required" if field.is_required() else "not set"
    return "''" if value == "" else str(value).lower() if isinstance(value, bool) else str(value)


def _in_columns(rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    yield from (f"  {line}" for line in in_columns(rows))


_REGISTRIES: tuple[Registry[Any], ...] = (STRATEGIES, LOCAL_RULES, POLICIES, REQUIREMENTS, TASKS)


def config_tables() -> dict[str, Scalar | dict[str, Scalar]]:
    """Return the default settings: general ones, and a table for each own plug-in."""
    tables = {
        name: {key: field.default for key, field in plugin.Settings.by_key().items() if field.default is not None}
        for name, plugin in plugins_with_settings().items()
    }
    return {**RunConfig.parse({}).as_config(), "set": "", **{name: table for name, table in tables.items() if table}}


def plugins_with_settings() -> dict[str, type[Plugin]]:
    """Return fedappeal's plug-ins that have settings, by name; a strategy's own rule shares the strategy's."""
    plugins: dict[str, type[Plugin]] = {}
    for registry in _REGISTRIES:
        for plugin in map(registry.load, registry.built_in):
            if plugin.Settings.by_key():
                plugins.setdefault(plugin.settings_name(), plugin)
    return plugins


def with_tables(pyproject: str) -> str:
    """Return the text of pyproject.toml with its tables as they are now."""
    tables = tomli_w.dumps({"tool": {"flwr": {"app": {"config": config_tables()}}}})
    before, _, rest = pyproject.partition("[tool.flwr.app.config]\n")
    return f"{before}{tables}\n{rest[rest.index('[tool.ruff]') :]}"
