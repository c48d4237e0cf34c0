"""Faults of code that is not fedappeal's: what failed, with file and line of the author's code."""

import os
import re
import sys
from collections.abc import Callable, Iterator
from traceback import walk_tb
from typing import Any, TypeVar

from fedappeal.core.plugins import Plugin, PluginSettings
from fedappeal.settings.config import ConfigError
from fedappeal.system.wording import near

T = TypeVar("T")
_NOT_THE_AUTHORS = frozenset(
    ("fedappeal", "client", "server", "strategies", "torch", "numpy", "flwr", "pydantic", "greenlet", "transformers")
) | set(sys.stdlib_module_names)
"""Top-level packages in which a plug-in's error may surface without being theirs."""
_INSTALLED = f"{os.sep}site-packages{os.sep}"


def reason(error: BaseException) -> str:
    """Return an error in one line, with file and line of the plug-in's code, if it came through some."""
    text = " ".join(str(error).split())
    return text if isinstance(error, ConfigError) and text else f"{type(error).__name__}: {text}{place(error)}"


def place(error: BaseException) -> str:
    """Return `` (FILE:LINE)`` of the innermost frame of the author's code; empty: none, or a refusal in words."""
    if isinstance(error, ConfigError):
        return ""
    frames = _frames(error)
    theirs = [frame for frame in frames if _INSTALLED not in frame[0]] or frames
    return f" ({near(theirs[-1][0])}:{theirs[-1][1]})" if theirs else ""


def is_authors(error: BaseException) -> bool:
    """Whether an error came through code that is neither fedappeal's nor an installed package's."""
    return any(_INSTALLED not in file for file, _ in _frames(error))


def _frames(error: BaseException) -> list[tuple[str, int]]:
    """Return file and line of each frame that may be the author's, the innermost last."""
    return [
        (frame.f_code.co_filename, line)
        for cause in _causes(error)
        for frame, line in walk_tb(cause.__traceback__)
        if str(frame.f_globals.get("__name__")).partition(".")[0] not in _NOT_THE_AUTHORS
    ]


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and what it was raised from, the first cause last."""
    while error is not None:
        yield error
        error = error.__cause__


def place_of(plugin: Any, *methods: str) -> str:
    """Return `` (FILE:LINE)`` of the first of these methods that the author wrote, or the file; empty: it is ours."""
    if plugin.__module__.partition(".")[0] in _NOT_THE_AUTHORS:
        return ""
    for kind in getattr(plugin, "__mro__", ()):  # a task or a model may be a function
        for method in methods:
            code = getattr(kind.__dict__.get(method), "__code__", None)
            if code is not None and kind.__module__.partition(".")[0] not in _NOT_THE_AUTHORS:
                return f" ({near(code.co_filename)}:{code.co_firstlineno})"
    return f" ({near(getattr(sys.modules.get(plugin.__module__), '__file__', None) or plugin.__module__)})"


def placed(line: str, plugin: Any, *methods: str) -> str:
    """Return what is wrong with where its author may look, as `place_of`, unless it names a file itself."""
    return line if re.search(r"\.py[:,]", line) else line + place_of(plugin, *methods)


def check_class(plugin: type[Plugin]) -> None:
    """Check the class of a plug-in: its methods, and its settings, each with a default.

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
    for key, field in settings.by_key().items():
        if field.is_required():
            raise ConfigError(f"{whose}: setting '{key}' has no default{place_of(plugin)}")


def checked_made(plugin: type[Plugin], make: Callable[[], T], setting: str = "") -> T:
    """Return a new object of a plug-in of another's, made as a run makes it; ``setting``: what names it.

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
        raise ConfigError(placed(line, plugin, "__init__")) from error
    if not hasattr(made, "settings"):
        raise ConfigError(
            f"plug-in {plugin.__name__}: __init__ does not call super().__init__ with what it is given"
            f"{place_of(plugin, '__init__')}"
        )
    return made  # type: ignore[no-any-return]
