"""Texts on the operator's terminal: clients, servers and files wrote parts of them, and no part is read as markup."""

import sys

from rich.console import Console
from rich.text import Text

from fedappeal.protocol.foreign_text import printable

_LONGEST = 2000
"""Characters of one part of a line; messages quote files that another party may have written."""

Part = str | tuple[str, str]
"""A text, or a text and its style."""


def line_of(*parts: Part, style: str = "") -> Text:
    """Return one line, of which nothing is markup, an emoji's name or a control character."""
    shown = [(part, "") if isinstance(part, str) else part for part in parts]
    return Text.assemble(*((printable(text, _LONGEST), own) for text, own in shown), style=style)


def say(console: Console, *parts: Part, style: str = "", soft_wrap: bool = True) -> None:
    """Print one line.

    Args:
        console: where.
        parts: of the line.
        style: of all of it.
        soft_wrap: whether the terminal wraps it, not we.
    """
    console.print(line_of(*parts, style=style), soft_wrap=soft_wrap)


def complain(problem: object) -> None:
    """Print on standard error what went wrong, in one line."""
    print(f"fedappeal: {printable(problem, _LONGEST)}", file=sys.stderr)
