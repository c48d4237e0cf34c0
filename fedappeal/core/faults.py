"""Checks of a plug-in's class and of what it makes.

A fault is named with file and line of the author's code.
"""

from collections.abc import Callable
from typing import Any, TypeVar

from fedappeal.core.algorithm import PARTS, ClientSide, Part
from fedappeal.core.places import place_of, reason, with_place
from fedappeal.core.plugins import Plugin, PluginSettings
from fedappeal.settings.config import ConfigError

T = TypeVar("T")


def check_class(plugin: type[Plugin]) -> None:
    """Check a plug-in's class: methods, a strategy's small objects, settings with defaults.

    Raises:
        ConfigError: one line, with the file.
    """
    settings, whose = plugin.Settings, f"plug-in {plugin.__name__}"
    if missing := sorted(getattr(plugin, "__abstractmethods__", ())):
        raise ConfigError(f"{whose} lacks {', '.join(missing)}{place_of(plugin)}")
    if not (isinstance(settings, type) and issubclass(settings, PluginSettings)):
        raise ConfigError(
            f"{whose}: Settings = {settings!r} is not allowed: a class derived from PluginSettings, or, for a "
            f"strategy, from StrategySettings{place_of(plugin)}"
        )
    parts = PARTS if issubclass(plugin, ClientSide) else {}
    for name, base in parts.items():
        part: object = getattr(plugin, name, None)
        if part is not None and not (isinstance(part, type) and issubclass(part, Part)):
            raise ConfigError(f"{whose}: {name} is not allowed: a class derived from {base}{place_of(plugin, name)}")
    for key, field in settings.by_key().items():
        if field.is_required():
            raise ConfigError(f"{whose}: setting '{key}' has no default{place_of(plugin)}")


def make_checked(plugin: type[Plugin], make: Callable[[], T], setting: str = "") -> T:
    """Return a new plug-in object, made as a run makes it.

    ``setting``: what names it.

    Raises:
        ConfigError: one line: `__init__` fails, or does not call that of its base.
    """
    try:
        made: Any = make()
    except ConfigError:
        raise
    except Exception as error:
        line = f"{setting or f'plug-in {plugin.__name__}'} cannot be made: {reason(error)}"
        if isinstance(error, TypeError):
            line += f"; its __init__ takes what its base's takes, and passes it on{place_of(plugin, '__init__')}"
        raise ConfigError(with_place(line, plugin, "__init__")) from error
    if not hasattr(made, "settings"):
        raise ConfigError(
            f"plug-in {plugin.__name__}: __init__ does not call super().__init__ with what it is given"
            f"{place_of(plugin, '__init__')}"
        )
    return made  # type: ignore[no-any-return]
