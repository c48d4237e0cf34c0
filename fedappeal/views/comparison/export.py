"""A comparison for other programs: DataFrame (`compare`), CSV, JSON, Markdown, LaTeX."""

import csv
import io
import json
import warnings
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal, get_args

from fedappeal.protocol.foreign_text import as_cell, as_markdown
from fedappeal.system.packages import require
from fedappeal.views.comparison.recorded_runs import RunLike, read_runs
from fedappeal.views.comparison.result import Comparison, compare_runs
from fedappeal.views.comparison.table import TextTable, comparison_tables

if TYPE_CHECKING:
    import pandas as pd

Format = Literal["csv", "latex", "markdown", "json"]
FORMATS: tuple[Format, ...] = get_args(Format)

_INTERVAL = ("mean", "low", "high")
_DIFFERENCE = ("difference", "difference_low", "difference_high")
_PAIRS = ("wins", "pairs", "verdict")
COLUMNS = ("task", "group", "measure", *_INTERVAL, "n", *_DIFFERENCE, *_PAIRS)
"""Of the rows; shares are numbers from 0 to 1, as in a history."""


def compare(
    runs: RunLike | Iterable[RunLike], *, baseline: str = "", each_run: bool = False, measures: Iterable[str] = ()
) -> "pd.DataFrame":
    """Return a row for each group of runs and measure; needs the extra ``frames``.

    Runs that differ in their seeds alone are a group, named by the settings in which it differs from others.

    Args:
        runs: folders of runs, folders that hold such folders (a sweep's), or objects with a ``path``; one or more.
        baseline: the group from which the differences are, by its name, its settings (``strategy=fedavg``) or their
            values (``fedavg``); empty: FedAvg's of each task, else its first.
        each_run: make each run a group of its own, named by its folder.
        measures: those that are compared, ``("accuracy", "served")``, in their order; empty: all. Where all runs have
            as many rounds, ``rounds`` is none of them.

    Returns:
        ``task``, ``group``, ``measure``; ``mean``, ``low`` and ``high`` of its 95 % interval, ``n`` seeds;
        ``difference`` from the baseline over the ``pairs`` seeds that both have, ``difference_low``,
        ``difference_high``, ``wins`` (seeds for which the group is better) and ``verdict`` (``undecided``
        where the interval holds 0, few seeds do not differ, or Holm's correction over its task's differences leaves
        it open). Without a spread there is no interval. Shares are numbers from 0 to 1. ``attrs["notes"]`` names
        what is odd about the runs.

    Warns:
        UserWarning: a run is not finished, so that all were compared after an earlier round.

    Raises:
        ConfigError: a folder without a run, an unknown baseline or measure, or pandas is not installed.
    """
    read, empty = read_runs(runs)
    comparisons = compare_runs(read, baseline, each_run, tuple(measures))
    frame = frame_of(comparisons)
    if empty:
        frame.attrs["notes"].append(left_out(empty))
    for comparison in comparisons:
        if comparison.after:
            warnings.warn(comparison.notes[0], stacklevel=2)
    return frame


def left_out(names: Iterable[str]) -> str:
    """Return the note on runs that have no finished round."""
    return f"left out, because no round is finished: {', '.join(names)}"


def rows_of(comparisons: Sequence[Comparison]) -> list[dict[str, Any]]:
    """Return a row for each group and measure, by `COLUMNS`.

    None in place of missing numbers.
    """
    rows = []
    for result in (result for comparison in comparisons for result in comparison.results):
        mean, difference = result.interval, result.difference
        values: list[Any] = [result.group.task, result.group.name, result.measure.key]
        values += [mean.mean, mean.low, mean.high, mean.n]
        if difference is None:
            values += [None] * len((*_DIFFERENCE, *_PAIRS))
        else:
            paired = difference.interval
            values += [paired.mean, paired.low, paired.high, difference.wins, paired.n, difference.verdict or None]
        rows.append(dict(zip(COLUMNS, values, strict=True)))
    return rows


def frame_of(comparisons: Sequence[Comparison]) -> "pd.DataFrame":
    """Return the rows as a DataFrame; ``attrs["notes"]`` holds the notes.

    Raises:
        ConfigError: pandas is not installed.
    """
    frame = pandas().DataFrame(rows_of(comparisons), columns=list(COLUMNS))
    numbers = dict.fromkeys((*_INTERVAL, *_DIFFERENCE), "float64")
    frame = frame.astype(numbers | {"wins": "Int64", "pairs": "Int64"})
    frame.attrs["notes"] = [note for comparison in comparisons for note in comparison.notes]
    return frame


def text_of(comparisons: Sequence[Comparison], form: Format) -> str:
    """Return a comparison in a format.

    Raises:
        ConfigError: LaTeX, and pandas is not installed.
    """
    if form == "csv":
        written = io.StringIO()
        lines = csv.DictWriter(written, COLUMNS, lineterminator="\n")
        lines.writeheader()
        lines.writerows({key: as_cell(value) for key, value in row.items()} for row in rows_of(comparisons))
        return written.getvalue()
    if form == "json":
        return json.dumps(rows_of(comparisons), indent=1) + "\n"
    tables = comparison_tables(comparisons)
    if form == "markdown":
        return "\n".join(f"**{as_markdown(table.title)}**\n\n{_foreign(table).markdown()}\n" for table in tables)
    return "\n".join(map(_latex, tables))


def _foreign(table: TextTable) -> TextTable:
    """Return a table whose texts are escaped for Markdown.

    A run's folder's names are among them.
    """
    header, *rows = (tuple(map(as_markdown, cells)) for cells in (table.header, *table.rows))
    return TextTable(table.title, header, tuple(rows))


_LATEX = str.maketrans(
    {character: f"\\{character}" for character in "&%$#_{}"}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
)


def _latex(table: TextTable) -> str:
    frame = pandas().DataFrame(list(table.rows), columns=list(table.header))
    caption = table.title.translate(_LATEX)
    columns = "l" + "r" * (len(table.header) - 1)
    text: str = frame.to_latex(index=False, escape=True, column_format=columns, caption=caption)
    return text.replace("±", r"$\pm$")


def pandas() -> Any:
    """Return the package, with what it needs to write LaTeX.

    Raises:
        ConfigError: it is not installed; says how.
    """
    require("data frames and LaTeX need pandas", "frames", "jinja2", "pandas")
    import pandas

    return pandas
