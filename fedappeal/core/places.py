"""Places in the code of an author that is not fedappeal's: an error, or a class, with its file and line."""

import os
import re
import sys
from collections.abc import Iterator
from traceback import walk_tb
from typing import Any

from fedappeal.settings.config import ConfigError
from fedappeal.system.wording import near

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
