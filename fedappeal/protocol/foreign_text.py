"""Texts that another party wrote: JSON that may be damaged, and what of a text may be printed."""

import json
import re
from typing import Any

_LONGEST = 500
SHOWN_ID = 64
"""Characters of a client-id that are shown."""


def parse_json(text: str | bytes) -> Any:
    """Return the value of a JSON text.

    Raises:
        ValueError: it is damaged, or so deeply nested that it cannot be read.
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def printable(text: object, longest: int = _LONGEST) -> str:
    """Return a text as one short line without control characters, fit for logs.

    Args:
        text: as the other party wrote it.
        longest: characters that are kept.
    """
    line = str(text)
    shown = line if len(line) <= longest else f"{line[: longest - 3]}..."
    return shown if shown.isprintable() else "".join(c if c.isprintable() else "?" for c in shown)


def one_line(text: object, longest: int = _LONGEST) -> str:
    """Return `printable` text with line breaks and runs of spaces made one space each."""
    return printable(" ".join(str(text)[: 4 * longest].split()), longest)


_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")


def as_cell(value: object) -> object:
    """Return a text as a CSV cell that no spreadsheet runs as a formula.

    It has an apostrophe before what would be one.

    Numbers stay, those in texts too. Source: OWASP, "CSV Injection".
    """
    if not (isinstance(value, str) and value.startswith(_FORMULA)):
        return value
    try:
        float(value)
    except ValueError:
        return f"'{value}"
    return value


_MARKDOWN = re.compile(r"[\\`*_<>~&]|\](?=[(\[:])|(?<=\w):(?=//)|(?<=\bwww)\.|(?<=\w)@(?=\w)")


def as_markdown(text: str) -> str:
    """Return a text escaped for Markdown: no links, pictures, HTML or markup.

    In a table's cell its bars are still to be escaped.
    """
    return _MARKDOWN.sub(r"\\\g<0>", text)


def all_printable(value: Any, longest: int | None = None) -> Any:
    """Return a value of `parse_json` with control characters replaced in its texts.

    Args:
        value: what was read.
        longest: characters that are kept of each text; None: all.
    """
    if isinstance(value, str):
        return printable(value, len(value) if longest is None else longest)
    if isinstance(value, list | tuple):
        return [all_printable(part, longest) for part in value]
    if isinstance(value, dict):
        return {all_printable(key, longest): all_printable(part, longest) for key, part in value.items()}
    return value
