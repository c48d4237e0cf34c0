"""Words for readers: names with numbers in their order, a number with its noun, a path from here."""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

_NUMBER = re.compile(r"([0-9]{1,18})")
"""Longer ones are several: a name may be made up to be costly."""


def natural_order(name: str) -> list[tuple[int, str]]:
    """Return a sort key that orders whole numbers in names by size."""
    return [(int(part), "") if n % 2 else (-1, part) for n, part in enumerate(_NUMBER.split(name))]


def plural(number: int, noun: str) -> str:
    """Return a number with its noun, such as ``3 rounds``."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def short_path(file: Path | str) -> str:
    """Return a path relative to the current folder, if it is below."""
    path, here = Path(file), Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)


def in_columns(rows: Iterable[Sequence[str]]) -> list[str]:
    """Return rows as aligned lines, with two blanks between cells.

    Every column is as wide as its widest cell.
    """
    cells = list(rows)
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in cells]
