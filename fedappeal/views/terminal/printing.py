"""Texts on the operator's terminal.

Clients, servers and files wrote parts of them; no part is read as markup.
"""

import re
import shlex
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from rich.cells import cell_len
from rich.console import Console, JustifyMethod
from rich.table import Table
from rich.text import Text

from fedappeal.protocol.foreign_text import printable
from fedappeal.system.json_log import is_json, json_line
from fedappeal.views.terminal.fitting import WORD, below_last_column, columns_that_fit, fit_lines

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
    """The print format of this process, which runs one command."""

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
    whole: bool = False,
    unit: re.Pattern[str] = WORD,
    facts: Mapping[str, object] = NO_FACTS,
    seconds: float | None = None,
) -> None:
    """Print one line, or as many as the console's width needs.

    Args:
        console: where.
        parts: of the line.
        style: of all of it.
        whole: whether it is never broken: it has something to copy.
        unit: what is not broken in other lines.
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
    line = line_of(*parts, style=style)
    for fitting in [line] if whole else fit_lines(line, console.width, unit):
        console.print(fitting, soft_wrap=True)


def say_where(console: Console, what: str, place: Path | str, facts: Mapping[str, object] = NO_FACTS) -> None:
    """Print a path or address as one unbroken word, quoted for the shell.

    Arguments as in `say`.
    """
    say(console, f"{what}: ", (shlex.quote(str(place)), "bold"), whole=True, facts=facts)


def print_fitting(
    console: Console,
    columns: Mapping[str, Sequence[Part]],
    left_out: Sequence[str],
    cut: Collection[str] = (),
    boxed: bool = False,
) -> None:
    """Print a table, a line a row, without columns that do not fit.

    Args:
        console: where.
        columns: cells by heading.
        left_out: headings of columns that may be left out, in the order in which they are.
        cut: headings of columns whose cells may be cut, to no less than their heading.
        boxed: whether lines stand around the cells, and numbers at the right.
    """
    cells = {name: [line_of(part) for part in parts] for name, parts in columns.items()}
    gap = 3 if boxed else 2
    widths = {name: max(map(cell_len, [name, *(cell.plain for cell in column)])) for name, column in cells.items()}
    room = console.width - 1 if boxed else console.width + gap
    least = {name: cell_len(name) if name in cut else wide for name, wide in widths.items()}
    shown = columns_that_fit({name: wide + gap for name, wide in least.items()}, room, left_out)
    table = Table() if boxed else Table(box=None, pad_edge=False, padding=(0, gap, 0, 0))
    for name in shown:
        justify: JustifyMethod = "right" if boxed and name != shown[0] else "left"
        table.add_column(name, justify=justify, no_wrap=True, min_width=least[name])
    for row in zip(*(cells[name] for name in shown), strict=True):
        table.add_row(*row)
    console.print(table)


def print_lines(lines: Iterable[str]) -> None:
    """Print lines of columns as wide as the terminal, on standard output.

    Their last column may be a sentence.
    """
    console = Console(highlight=False)
    for line in lines:
        for fitting in fit_lines(line_of(line), console.width, hanging=below_last_column(line, console.width)):
            console.print(fitting, soft_wrap=True)


def complain(problem: object, prefix: str = "fedappeal: ") -> None:
    """Print a problem on standard error, in one line."""
    if as_json():
        line = json_line("error", "fedappeal", problem, {"event": "problem"})
    else:
        line = f"{prefix}{printable(problem, _LONGEST)}"
    print(line, file=sys.stderr)
