"""Where an error came from: file and line of the code of a plug-in's author."""

import os
import sys
from collections.abc import Iterator
from traceback import walk_tb

from fedappeal.settings.config import ConfigError
from fedappeal.system.wording import near

NOT_THE_AUTHORS = frozenset(
    ("fedappeal", "client", "server", "strategies", "torch", "numpy", "flwr", "pydantic", "greenlet", "transformers")
) | set(sys.stdlib_module_names)
"""Top-level packages in which a plug-in's error may surface without being theirs."""


def reason(error: BaseException) -> str:
    """Return an error in one line, with file and line of the plug-in's code, if it came through some."""
    text = " ".join(str(error).split())
    return text if isinstance(error, ConfigError) and text else f"{type(error).__name__}: {text}{place(error)}"


def place(error: BaseException) -> str:
    """Return `` (FILE:LINE)`` of the innermost frame of the author's code; empty: none, or a refusal in words."""
    if isinstance(error, ConfigError):
        return ""
    frames = [
        (frame.f_code.co_filename, line)
        for cause in _causes(error)
        for frame, line in walk_tb(cause.__traceback__)
        if str(frame.f_globals.get("__name__")).partition(".")[0] not in NOT_THE_AUTHORS
    ]
    installed = f"{os.sep}site-packages{os.sep}"
    theirs = [frame for frame in frames if installed not in frame[0]] or frames
    return f" ({near(theirs[-1][0])}:{theirs[-1][1]})" if theirs else ""


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and what it was raised from, the first cause last."""
    while error is not None:
        yield error
        error = error.__cause__
