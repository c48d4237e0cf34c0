"""Tables of texts, for the terminal and as Markdown, and those of a comparison: means by group, differences."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.console import Console
from rich.markup import escape
from rich.table import Table as RichTable
from rich.text import Text

from fedappeal.system.wording import plural
from fedappeal.views.comparison.measures import Measure
from fedappeal.views.comparison.result import Comparison, Group, Result, policies_differ
from fedappeal.views.comparison.statistics import Difference, Interval
from fedappeal.views.terminal.fitting import fit_lines

NONE = "-"
WIDTH = 80
"""Characters of a terminal's line, where its width is not known."""
_HEADING = 16
"""Characters of a column's heading before it is wrapped."""
_NAMES = 0.28
"""Most of a line that the rows' names take; longer ones are wrapped."""
_BORDER = 3
"""Characters around a cell: two blanks and a line; one more line ends the table."""


def plain_number(value: float, digits: int, sign: str = "") -> str:
    """Return a number with its digits after the point, never -0.0."""
    text = f"{value:{sign}.{digits}f}"
    return text.replace("-", sign) if float(text) == 0 else text


@dataclass(frozen=True)
class TextTable:
    """A table to be printed or put on a page.

    Attributes:
        title: its heading.
        header: the columns' headings; the first is the row's name.
        rows: cells; a row with one cell alone is the heading of a group.
    """

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def rich(self, width: int = WIDTH) -> list[RichTable]:
        """Return terminal tables: one for each group of rows and of columns that fit.

        Args:
            width: of the terminal, in characters.
        """
        groups: list[tuple[str, list[tuple[str, ...]]]] = []
        for row in self.rows:
            if len(row) == 1 or not groups:
                groups.append((f": {row[0]}" if len(row) == 1 else "", []))
            if len(row) > 1:
                groups[-1][1].append(row)
        tables = []
        for group, rows in groups:
            for columns in self._beside_each_other(rows, width):
                table = RichTable(title=escape(self.title + group), title_justify="left")
                for n, characters in columns:
                    heading = Text(self.header[n], overflow="fold")
                    table.add_column(heading, justify="right" if n else "left", width=characters, overflow="fold")
                for row in rows:
                    table.add_row(*(Text(row[n], overflow="fold") for n, _ in columns))
                tables.append(table)
        return tables

    def _beside_each_other(self, rows: Sequence[tuple[str, ...]], width: int) -> list[list[tuple[int, int]]]:
        """Return the columns of each part, the rows' names first: ``(number, characters)``."""
        longest = [max(cell_len(row[n]) for row in [self.header, *rows]) for n in range(len(self.header))]
        cells = [max(cell_len(row[n]) for row in rows) for n in range(len(self.header))]
        others = self._needs(range(1, len(self.header)), longest, cells)
        names = min(longest[0], max(int(_NAMES * width), width - 1 - _BORDER - others, 1))
        left = width - 1 - names - _BORDER  # for the columns beside the names
        parts: list[list[int]] = []
        for n in range(1, len(self.header)):
            if not parts or self._needs([*parts[-1], n], longest, cells) > left:
                parts.append([])
            parts[-1].append(n)
        columns = []
        for part in parts:
            spare = max(0, left - self._needs(part, longest, cells)) // len(part)
            widths = [min(longest[n], self._needs([n], longest, cells) - _BORDER + spare) for n in part]
            most = max(1, left - _BORDER)  # a single column that is too wide is folded
            columns.append([(0, names), *((n, min(w, most)) for n, w in zip(part, widths, strict=True))])
        return columns

    @staticmethod
    def _needs(part: Sequence[int], longest: Sequence[int], cells: Sequence[int]) -> int:
        return sum(max(cells[n], min(longest[n], _HEADING)) + _BORDER for n in part)

    def first_group(self) -> "TextTable":
        """Return the table with only its first group, and the rows above it."""
        headings = [n for n, row in enumerate(self.rows) if len(row) == 1]
        return TextTable(self.title, self.header, self.rows[: headings[1]] if len(headings) > 1 else self.rows)

    def markdown(self) -> str:
        """Return the table in Markdown, without its heading."""
        align = ["---"] + ["---:"] * (len(self.header) - 1)
        cells = [self.header, tuple(align)]
        cells += [(f"**{row[0]}**", *[""] * (len(self.header) - 1)) if len(row) == 1 else row for row in self.rows]
        return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in cells)


def print_tables(tables: Iterable[TextTable], console: Console) -> None:
    """Print tables as wide as the console, each below its title.

    A title may be wider than the table.
    """
    for table in tables:
        for part in table.rich(console.width):
            title, part.title = Text.from_markup(str(part.title), style="italic"), None
            for line in fit_lines(title, console.width):
                console.print(line, soft_wrap=True)
            console.print(part)


def comparison_tables(comparisons: Sequence[Comparison]) -> list[TextTable]:
    """Return tables of means and of differences, for each task: a column a group."""
    tables = []
    for comparison in comparisons:
        where = f" on {comparison.baseline.task}" if len(comparisons) > 1 else ""
        where += f", after round {comparison.last_round}" if comparison.last_round else ""
        tables.append(_means(comparison, where))
        if others := [group for group in comparison.groups if group != comparison.baseline]:
            tables.append(_differences(comparison, others, where))
    return tables


def _means(comparison: Comparison, where: str) -> TextTable:
    several = any(len(group.seeds) > 1 for group in comparison.groups)
    what = "mean over seeds, with its 95 % interval" if several else "one seed, so no interval"
    rows = [
        (measure.title, *(_mean(comparison.of(group, measure), group) for group in comparison.groups))
        for measure in comparison.measures
    ]
    header, *settings = _settings(comparison.groups)
    counts = [len(group.seeds) for group in comparison.groups]
    seeds = ("seeds", *(str(count) if count > 1 else "1, no interval" for count in counts))
    return TextTable(f"Results{where}: {what}", header, (*settings, seeds, *rows))


def _settings(groups: Sequence[Group]) -> list[tuple[str, ...]]:
    """Return a row for each setting that differs, default policies among them."""
    keys = dict.fromkeys(key for group in groups for key, _ in group.settings)
    if "participation" not in keys and policies_differ(groups):
        policies = [("policy", *(group.policies for group in groups))]
    else:
        policies = []
    return [*((key, *(dict(group.settings).get(key, NONE) for group in groups)) for key in keys), *policies]


def _mean(result: Result | None, group: Group) -> str:
    if result is None:
        return NONE
    text = interval_text(result.interval, result.measure)
    return text if result.interval.n == len(group.seeds) else f"{text} ({result.interval.n} of {len(group.seeds)})"


def _differences(comparison: Comparison, others: Sequence[Group], where: str) -> TextTable:
    """Return the table of differences.

    A measure that is the same in every group and seed has no row.
    """
    rows = []
    for measure in (measure for measure in comparison.measures if not comparison.is_same(measure)):
        differences = [r.difference if (r := comparison.of(group, measure)) else None for group in others]
        rows.append((measure.title, *(_difference(difference, measure) for difference in differences)))
    rows = rows or [("all measures", *("the same" for _ in others))]
    title = f"Differences from {comparison.baseline.label}{where}, paired over seeds; k/n: better in k of n"
    tests = len(comparison.tested)
    title += f"; {plural(tests, 'test')} at 95 %, Holm's correction over all of them" if tests else ""
    header, *settings = _settings(others)
    return TextTable(title, header, (*settings, *rows))


def _difference(difference: Difference | None, measure: Measure) -> str:
    if difference is None:
        return NONE
    words = [interval_text(difference.interval, measure, "+"), difference.verdict]
    if difference.wins is not None:
        words.append(f"{difference.wins}/{difference.interval.n}")
    return " ".join(filter(None, words))


def interval_text(interval: Interval, measure: Measure, sign: str = "") -> str:
    """Return ``1.5 ± 0.2``, or for shares ``97.0 [91.2, 99.0]``.

    A share's interval is uneven.
    """

    def shown(value: float, sign: str = "") -> str:
        return plain_number(measure.scale * value, measure.digits, sign)

    mean = shown(interval.mean, sign)
    if interval.half is None or interval.low is None or interval.high is None:
        return mean
    if interval.is_share:
        return f"{mean} [{shown(interval.low, sign)}, {shown(interval.high, sign)}]"
    return f"{mean} ± {shown(interval.half)}"
