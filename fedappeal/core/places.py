"""File and line of an error, or of a class, in an author's own code."""

import os
import re
import sys
from collections.abc import Iterator
from traceback import walk_tb
from typing import Any

from fedappeal.settings.config import ConfigError
from fedappeal.system.wording import short_path

_NOT_THE_AUTHORS = frozenset(
    ("fedappeal", "client", "server", "strategies", "torch", "numpy", "flwr", "pydantic", "greenlet", "transformers")
) | set(sys.stdlib_module_names)
"""Top-level packages in which a plug-in's error may surface without being theirs."""
_INSTALLED = f"{os.sep}site-packages{os.sep}"


def reason(error: BaseException) -> str:
    """Return an error in one line, with file and line of a plug-in's code."""
    text = " ".join(str(error).split())
    return text if isinstance(error, ConfigError) and text else f"{type(error).__name__}: {text}{place(error)}"


def place(error: BaseException) -> str:
    """Return ``(FILE:LINE)`` of the author's innermost frame, after a space; empty if none.

    A refusal in words (ConfigError) has none either.
    """
    if isinstance(error, ConfigError):
        return ""
    frames = _frames(error)
    theirs = [frame for frame in frames if _INSTALLED not in frame[0]] or frames
    return f" ({short_path(theirs[-1][0])}:{theirs[-1][1]})" if theirs else ""


def is_authors(error: BaseException) -> bool:
    """Whether an error came through an author's code.

    Neither fedappeal's nor an installed package's.
    """
    return any(_INSTALLED not in file for file, _ in _frames(error))


def _frames(error: BaseException) -> list[tuple[str, int]]:
    """Return the author's frames as file and line, the innermost last."""
    return [
        (frame.f_code.co_filename, line)
        for cause in _causes(error)
        for frame, line in walk_tb(cause.__traceback__)
        if str(frame.f_globals.get("__name__")).partition(".")[0] not in _NOT_THE_AUTHORS
    ]


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and its causes, the first cause last."""
    while error is not None:
        yield error
        error = error.__cause__


def place_of(plugin: Any, *methods: str) -> str:
    """Return ``(FILE:LINE)`` of a plug-in's first method among these, after a space.

    The plug-in's file if its author wrote none of them; empty for fedappeal's own.
    """
    if plugin.__module__.partition(".")[0] in _NOT_THE_AUTHORS:
        return ""
    for kind in getattr(plugin, "__mro__", ()):  # a task or a model may be a function
        for method in methods:
            code = getattr(kind.__dict__.get(method), "__code__", None)
            if code is not None and kind.__module__.partition(".")[0] not in _NOT_THE_AUTHORS:
                return f" ({short_path(code.co_filename)}:{code.co_firstlineno})"
    return f" ({short_path(getattr(sys.modules.get(plugin.__module__), '__file__', None) or plugin.__module__)})"


def with_place(line: str, plugin: Any, *methods: str) -> str:
    """Return a problem's line with a place to look, unless it names a file.

    The place is that of `place_of`.
    """
    return line if re.search(r"\.py[:,]", line) else line + place_of(plugin, *methods)
