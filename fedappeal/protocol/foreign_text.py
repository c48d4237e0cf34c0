"""Texts that another party wrote: JSON that may be damaged, and what of a text may be printed."""

import json
from typing import Any

_LONGEST = 500
SHOWN_ID = 64
"""Characters of a client-id that are shown."""


def parse_json(text: str | bytes) -> Any:
    """Return what a JSON text says.

    Raises:
        ValueError: it is damaged, or so deeply nested that it cannot be read.
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def printable(text: object, longest: int = _LONGEST) -> str:
    """Return a text fit for a terminal or a log: one short line without control characters.

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


def all_printable(value: Any, longest: int | None = None) -> Any:
    """Return what `parse_json` read with control characters replaced in all texts.

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
