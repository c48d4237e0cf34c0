"""The catalogue of the history's columns: what each is called, what it means, and where it is shown.

A new number of a round is computed in one place and named here: it then stands on the terminal, in reports, on the
live page, in Prometheus, in comparisons and in `fedappeal list columns`. Trackers and data frames take every number.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from fedappeal.protocol.metric import ACCURACY, Metric

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
_ORDER = {
    LINE: "round joined served sat_out left bounded gm_appeal {metric} preferred_{metric} * seconds",
    TABLE: "gm_appeal served {metric} adapted_{metric} preferred_{metric} loss *",
    CHART: "gm_appeal {metric} joined/asked served loss *",
    PICTURE: "gm_appeal {metric} joined/asked loss",
    PAGE: "joined sat_out left absent failed gm_appeal {metric} * bytes_up bytes_down seconds",
    GAUGE: "loss gm_appeal {metric} *",
    MEASURE: "gm_appeal served {metric} worst_decile_{metric} preferred_{metric} adapted_{metric} loss adapted_loss "
    "priority_{metric} * joined/asked left absent failed bytes_up bytes_down seconds",
    HEADLINE: "gm_appeal {metric}",
    SUMMARY: "gm_appeal {metric} {metric}_clients worst_decile_{metric} loss * central_loss central_{metric}",
    CARD: "gm_appeal {metric} preferred_{metric} loss",
}
"""The columns of each view in order; at the star, those that are shown everywhere."""
_TITLES = {
    (LINE, "seconds"): "s",
    (TABLE, "gm_appeal"): "GM-Appeal (share of clients the model appeals to)",
    (TABLE, "served"): "served (share for whom it is as good as their own)",
    (TABLE, "{metric}"): "test {name}",
    (TABLE, "adapted_{metric}"): "test {name} after the clients' own steps",
    (TABLE, "preferred_{metric}"): "preferred-model test {name}",
}
"""Titles that a column has in one view alone."""
_FORMS = {(LINE, "served"): (PERCENT, 0), (TABLE, "served"): (SHARE, 3), (LINE, "seconds"): (SECONDS, 2)}
"""Units and digits that a column has in one view alone."""


@dataclass(frozen=True)
class Column:
    """A column of the history, shown everywhere unless `_ORDER` says where.

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
        unit, digits = _FORMS.get((view, self.key), (self.unit, self.digits))
        return replace(self, title=_TITLES.get((view, self.key), title), unit=unit, digits=digits)

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


def _count(key: str, words: str, title: str = "", better: Better = "") -> Column:
    short = key.replace("_", " ")
    return Column(key, title or short, words, CLIENTS, better, TOTAL, short)


def _number(key: str, words: str, unit: str = NUMBER) -> Column:
    return Column(key, key, words, unit, "", "", hidden=True)


COLUMNS = (
    Column("round", "round", "number of the round, from 1", NUMBER, "", "", short="round", digits=0),
    _number("asked", "clients that were asked to train", CLIENTS),
    _count("joined", "clients that joined and whose updates count"),
    Column("joined/asked", "joined, % of those asked", "share that joined of those asked", PERCENT, averaged=""),
    _count("sat_out", "clients that sat out"),
    _count("left", "times that a client left for good", "clients that left", "lower"),
    _count("absent", "clients of which no reply came in time: resting, slow or out of reach", "", "lower"),
    _count("failed", "clients whose replies failed or were left out", "failed replies", "lower"),
    _number("surplus", "clients that joined after enough had", CLIENTS),
    _number("mandatory", "whether clients were asked not to opt out"),
    _count("bounded", "clients whose influence was bounded"),
    Column("gm_appeal", "GM-Appeal", "share of clients the model appeals to"),
    _number("gm_appeal_train", "the same by the loss on training examples", SHARE),
    _number("gm_appeal_held_out", "the same by the loss on held-out examples", SHARE),
    Column(
        *("served", "served as well as alone, % of clients"),
        "share of clients for whose test data the model is at least as good as their own",
        unit=PERCENT,
        short="served",
    ),
    Column("{metric}", "test {heading}", "the task's primary metric", OF_METRIC, short="{name}"),
    Column(
        "worst_decile_{metric}", "worst decile's {heading}", "mean over the worst tenth of the clients", OF_METRIC
    ),
    _number("{metric}_clients", "clients that could compute it, where not all could", CLIENTS),
    _number("lowest_{metric}", "the lowest of a client", OF_METRIC),
    _number("highest_{metric}", "the highest of a client", OF_METRIC),
    Column(
        *("preferred_{metric}", "preferred-model {heading}", "the metric of the model that each client prefers"),
        unit=OF_METRIC,
        short="preferred",
    ),
    Column("adapted_{metric}", "adapted model's {heading}", "the metric after the clients' own steps", OF_METRIC),
    Column("loss", "test loss", "mean test loss of the clients", NUMBER, "lower"),
    _number("train_loss", "the loss on the clients' training examples"),
    Column("adapted_loss", "adapted model's loss", "the loss after the clients' own steps", NUMBER, "lower"),
    Column("priority_{metric}", "priority clients' {heading}", "the metric over clients with priority", OF_METRIC),
    Column("central_loss", "central loss", "the loss on the server's data", NUMBER, "lower", ""),
    Column("central_{metric}", "central {heading}", "the metric on the server's data", OF_METRIC, averaged=""),
    _number("rolled_back", "1 where the round's model was useless, and an earlier one took its place"),
    _number("rolled_back_to", "the round of that earlier one"),
    _number("learning_rate", "the clients' learning rate, where it has a schedule"),
    _number("not_finite", "1 where the server's step was not finite, and was left out"),
    _number("compared_decisions", "decisions that were worked out in two precisions", CLIENTS),
    _number("flipped_decisions", "those of them that came out otherwise", CLIENTS),
    _number("virtual_seconds", "the time that clients would have taken, where it is simulated", SECONDS),
    _number("evaluated", "clients that answered the evaluation", CLIENTS),
    _number("expected", "clients that were asked to evaluate", CLIENTS),
    Column("bytes_up", "MB up", "bytes of the replies' contents", BYTES, "lower", TOTAL, "up"),
    Column("bytes_down", "MB down", "bytes of the instructions' contents", BYTES, "lower", TOTAL, "down"),
    Column("seconds", "seconds in all", "wall time", SECONDS, "lower", TOTAL, "seconds"),
)
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
    placed = {key for order in _ORDER.values() for key in order.split()}
    new = [column for column in COLUMNS if not column.hidden and column.key not in placed]
    by_key = {column.key: [column] for column in COLUMNS} | {_NEW: new}
    return [column.seen_in(view) for key in _ORDER[view].split() for column in by_key[key]]


def units(keys: Iterable[str], metric: Metric) -> dict[str, str]:
    """Return the unit of each column in lines and frames; shares between 0 and 1."""
    by_key = {column.of(metric).key: column.of(metric) for column in COLUMNS}
    columns = {key: by_key.get(key.removeprefix("unseen_")) for key in keys}
    return {key: SHARE if c and c.is_share else c.unit if c else NUMBER for key, c in columns.items()}


def column_rows() -> Iterator[tuple[str, str, str, str, str]]:
    """Yield each column's key, unit, better direction, averaging and description."""
    for column in COLUMNS:
        better = OF_METRIC if column.unit == OF_METRIC and column.better else column.better
        yield column.key.replace("{metric}", "METRIC"), column.unit, better, column.averaged, column.words
