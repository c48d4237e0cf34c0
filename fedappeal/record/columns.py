"""The catalogue of the history's columns: what each is called, what it means, and where it is shown.

A new number of a round is computed in one place and named in ``columns.toml``: it then stands on the terminal, in
reports, on the live page, in Prometheus, in comparisons and in `fedappeal list columns`. Trackers and data frames
take every number.
"""

import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from fedappeal.protocol.metric import ACCURACY, Metric
from fedappeal.protocol.metric import column as column_of
from fedappeal.settings.config import ConfigError

Better = Literal["higher", "lower", ""]
"""Which way is better; empty: neither."""

CLIENTS, SHARE, PERCENT, NUMBER, BYTES, SECONDS = "clients", "share", "%", "number", "bytes", "seconds"
"""Units; a share from 0 to 1 is shown as it is, or in per cent."""
OF_METRIC = "as the metric"
"""The unit and the better direction are those of the task's primary metric."""
_DIGITS = {CLIENTS: 0, SHARE: 3, PERCENT: 1, NUMBER: 3, BYTES: 2, SECONDS: 1}
MEAN, TOTAL = "mean over clients", "total over rounds"
"""How a column is averaged; of a mean over the seen clients, ``unseen_COLUMN`` is that over the unseen ones."""

LINE, TABLE = "line", "table"
"""The terminal's line of a round, and its table at the end."""
CHART, PICTURE = "chart", "picture"
"""Curves over the rounds: in reports and on the live page, and by `compare --plot`."""
PAGE = "page"
"""The live page's rounds."""
GAUGE, MEASURE = "gauge", "measure"
"""Prometheus, and comparisons."""
HEADLINE, SUMMARY, CARD = "headline", "summary", "card"
"""Progress bars and verdicts, a run's summary in Python, and a model's card."""

_NEW = "*"
_CATALOGUE: Mapping[str, Any] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
_VIEWS: Mapping[str, Mapping[str, Any]] = _CATALOGUE["views"]
"""By view its order, and what a column has there alone."""


@dataclass(frozen=True)
class Column:
    """A column of the history, shown everywhere unless a view's order names it.

    ``{metric}``, ``{name}`` and ``{heading}`` in its texts are the primary metric's column, name and heading.

    Attributes:
        key: its key in a line; ``A/B``: the quotient of two.
        title: its heading in tables and charts.
        words: what it is.
        unit: one of the units above.
        better: which way is better.
        averaged: `MEAN`, `TOTAL`, or empty: neither.
        short: its heading where there is little room; empty: ``title``.
        hidden: whether no view shows it but the catalogue, trackers and data frames.
        digits: after the point; negative: as many as the unit has.
    """

    key: str
    title: str
    words: str
    unit: str = SHARE
    better: Better = "higher"
    averaged: str = MEAN
    short: str = ""
    hidden: bool = False
    digits: int = -1

    def of(self, metric: Metric) -> "Column":
        """Return the column in runs of a metric."""
        names = {"metric": metric.column, "name": metric.name, "heading": metric.heading}
        texts: dict[str, Any] = {n: getattr(self, n).format(**names) for n in ("key", "title", "short", "words")}
        if self.unit == OF_METRIC:
            texts["unit"] = PERCENT if metric.is_share else NUMBER
            texts["better"] = "higher" if metric.higher_is_better else "lower"
        return replace(self, **texts)

    def seen_in(self, view: str) -> "Column":
        """Return the column with a view's title, unit and digits."""
        title = self.short if view in (LINE, PAGE, HEADLINE) and self.short else self.title
        return replace(self, **{"title": title, **_VIEWS[view].get(self.key, {})})

    @property
    def scale(self) -> float:
        """The factor from a value to its shown unit: 100 for a share."""
        return 100.0 if self.unit == PERCENT else 1.0

    @property
    def is_share(self) -> bool:
        """Whether it lies between 0 and 1."""
        return self.unit in (SHARE, PERCENT)

    @property
    def decimals(self) -> int:
        """Digits after the point."""
        return _DIGITS[self.unit] if self.digits < 0 else self.digits

    def value(self, line: Mapping[str, Any]) -> Any:
        """Return the column's value in a line of the history; None if it has none."""
        key, _, per = self.key.partition("/")
        if not per:
            return line.get(key)
        return line[key] / line[per] if line.get(per) else None

    def text(self, value: float | None) -> str:
        """Return a value with its unit; ``-`` for None."""
        if value is None:
            return "-"
        return f"{self.scale * value:.{self.decimals}f}" + (" %" if self.unit == PERCENT else "")


def _column(key: str, kind: str = "", **facts: Any) -> Column:
    return Column(key, **{"title": key, **_CATALOGUE["kinds"].get(kind, {}), **facts})


COLUMNS = tuple(_column(key, **facts) for key, facts in _CATALOGUE["columns"].items())
"""All columns that runs of every strategy may have; strategies add numbers of their own."""


def shown_in(view: str, metric: Metric = ACCURACY) -> list[Column]:
    """Return the columns of a view in order, with their titles there.

    Args:
        view: such as `LINE`.
        metric: the task's primary metric.
    """
    return list({column.of(metric).key: column.of(metric) for column in templates(view)}.values())


def templates(view: str) -> list[Column]:
    """Return the columns of a view in order, whatever the metric is."""
    placed = {key for view_facts in _VIEWS.values() for key in view_facts["order"].split()}
    new = [column for column in COLUMNS if not column.hidden and column.key not in placed]
    by_key = {column.key: [column] for column in COLUMNS} | {_NEW: new}
    return [column.seen_in(view) for key in _VIEWS[view]["order"].split() for column in by_key[key]]


def units(keys: Iterable[str], metric: Metric) -> dict[str, str]:
    """Return the unit of each column in lines and frames; shares between 0 and 1."""
    by_key = {column.of(metric).key: column.of(metric) for column in COLUMNS}
    columns = {key: by_key.get(key.removeprefix("unseen_")) for key in keys}
    return {key: SHARE if c and c.is_share else c.unit if c else NUMBER for key, c in columns.items()}


_OF_EACH_METRIC = ("{metric}", "{metric}_clients", "central_{metric}")
"""The columns of a metric that is not the primary one."""


def check_names(metric: Metric, others: Sequence[str]) -> None:
    """Check that each of a task's metrics has a column of its own.

    Args:
        metric: the primary one.
        others: names of the further ones.

    Raises:
        ConfigError: names one that stands where another number does; or what is no metric, or no names.
    """
    if not isinstance(metric, Metric):
        raise ConfigError(f"metric = {metric!r} is not allowed: a Metric")
    if not isinstance(others, tuple | list) or not all(isinstance(name, str) for name in others):
        raise ConfigError(f"other_metrics = {others!r} is not allowed: a tuple of names")
    keys = [column.of(metric).key for column in COLUMNS]
    keys += [key.format(metric=column_of(name)) for name in others for key in _OF_EACH_METRIC]
    keys += [f"unseen_{key}" for key in keys]
    for name in (metric.name, *others):
        if keys.count(column_of(name)) > 1:
            raise ConfigError(
                f"metric = '{name}' is not allowed: another number of the run stands in the history's column "
                f"'{column_of(name)}'"
            )


def column_rows() -> Iterator[tuple[str, str, str, str, str]]:
    """Yield each column's key, unit, better direction, averaging and description."""
    for column in COLUMNS:
        better = OF_METRIC if column.unit == OF_METRIC and column.better else column.better
        yield column.key.replace("{metric}", "METRIC"), column.unit, better, column.averaged, column.words
