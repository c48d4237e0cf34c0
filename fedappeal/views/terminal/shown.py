"""Texts on the operator's terminal: clients, servers and files wrote parts of them, and no part is read as markup."""

import sys
from collections.abc import Mapping
from types import MappingProxyType

from rich.console import Console
from rich.text import Text

from fedappeal.protocol.foreign_text import printable
from fedappeal.system.json_log import is_json, json_line

_LONGEST = 2000
"""Characters of one part of a line; messages quote files that another party may have written."""

Part = str | tuple[str, str]
"""A text, or a text and its style."""


def line_of(*parts: Part, style: str = "") -> Text:
    """Return one line, of which nothing is markup, an emoji's name or a control character."""
    shown = [(part, "") if isinstance(part, str) else part for part in parts]
    return Text.assemble(*((printable(text, _LONGEST), part_style) for text, part_style in shown), style=style)


NO_FACTS: Mapping[str, object] = MappingProxyType({})


class _Output:
    """How this process prints: one command runs in it."""

    as_json = False


def use_format(log_format: str) -> str:
    """Print lines of text, or JSON lines from here on; return the format.

    Raises:
        ConfigError: it is none.
    """
    _Output.as_json = is_json(log_format)
    return log_format


def as_json() -> bool:
    """Return whether JSON lines are printed, each an event."""
    return _Output.as_json


def say(
    console: Console,
    *parts: Part,
    style: str = "",
    soft_wrap: bool = True,
    facts: Mapping[str, object] = NO_FACTS,
    seconds: float | None = None,
) -> None:
    """Print one line.

    Args:
        console: where.
        parts: of the line.
        style: of all of it.
        soft_wrap: whether the terminal wraps it, not we.
        facts: of a JSON line: ``event``, ``run``, ``round`` and ``client``, as far as they are known.
        seconds: when, since 1970; None: now.
    """
    if as_json():
        level = "warning" if style == "yellow" else "info"
        text = "".join(part if isinstance(part, str) else part[0] for part in parts)
        print(
            json_line(level, "fedappeal.run", text, {"event": "log", **facts}, seconds), file=console.file, flush=True
        )
        return
    console.print(line_of(*parts, style=style), soft_wrap=soft_wrap)


def complain(problem: object, prefix: str = "fedappeal: ") -> None:
    """Print on standard error what went wrong, in one line."""
    if as_json():
        line = json_line("error", "fedappeal", problem, {"event": "problem"})
    else:
        line = f"{prefix}{printable(problem, _LONGEST)}"
    print(line, file=sys.stderr)
