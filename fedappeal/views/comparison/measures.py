"""Measures: one number each, read off the lines of a run's history; and the pictures that show them."""

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec

from fedappeal.protocol.metric import ACCURACY as BY_ACCURACY
from fedappeal.protocol.metric import Metric
from fedappeal.record.columns import BYTES, MEAN, MEASURE, PERCENT, TOTAL, Better, Column, shown_in
from fedappeal.system.packages import require

if TYPE_CHECKING:
    from matplotlib import figure
    from numpy.typing import NDArray

    Figure = figure.Figure
else:
    Figure = Any  # matplotlib is loaded where there is something to draw

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#666666", "#000000", "#8c564b")
"""Okabe and Ito's palette: told apart by colour-blind readers too."""

DASHES: tuple[Any, ...] = ("-", (0, (6, 2)), (0, (2, 1.5)), (0, (8, 2, 2, 2)), (0, (4, 3)))
"""By colour: where curves coincide, the lower ones show through the gaps."""


def check_plots() -> None:
    """Check that figures can be drawn.

    Raises:
        ConfigError: matplotlib is not installed; names the extra.
    """
    require("figures need matplotlib", "plots", "matplotlib")


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure, in inches."""
    check_plots()
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def new_panels(
    width: float, height: float, rows: int = 1, columns: int = 1, lines: Literal["both", "x"] = "both", **shared: Any
) -> "tuple[Figure, NDArray[Any]]":
    """Return an empty figure, in inches, and its panels, with faint lines at the ticks.

    Args:
        width: of the figure.
        height: of the figure.
        rows: of panels.
        columns: of panels.
        lines: at the ticks of both axes, or of x alone.
        shared: further arguments of ``Figure.subplots``.
    """
    figure = new_figure(width, height)
    panels: NDArray[Any] = figure.subplots(rows, columns, squeeze=False, **shared)
    for axes in panels.flat:
        axes.grid(alpha=0.3, axis=lines)
    return figure, panels


def save(figure: Figure, stem: Path) -> None:
    """Write ``stem.png`` and ``stem.svg``, the same for the same numbers."""
    stem.parent.mkdir(parents=True, exist_ok=True)
    for ending in (".png", ".svg"):
        stem.with_name(stem.name + ending).write_bytes(picture_bytes(figure, ending))


def picture_bytes(figure: Figure, ending: str) -> bytes:
    """Return a figure as a file's content.

    Args:
        figure: the figure.
        ending: ``.png`` or ``.svg``.
    """
    import matplotlib as mpl

    written = io.BytesIO()
    undated = {"Date": None} if ending == ".svg" else None
    # Without a salt of its own an SVG's names are others each time.
    with mpl.rc_context({"svg.hashsalt": "fedappeal", "hatch.color": "#777777", "hatch.linewidth": 0.4}):
        figure.savefig(written, format=ending.removeprefix("."), dpi=90, metadata=undated)
    return written.getvalue()


Line = Mapping[str, Any]
"""One line of a run's ``history.jsonl``; for a computed experiment, all that its ``compute`` returned."""

Lines = Sequence[Line]

Reading = Callable[[Lines], float | None]
"""Reads a number off the lines of a run's history; None where the run has none."""

LineValue = str | Callable[[Line], float | None]
"""A key of the history's lines, or a function that reads a value off a line."""

LATE = 20
"""Rounds at the end of a run over which a measure is averaged: the last round alone is noisy."""


ROUNDS = "rounds"
"""Key of the number of rounds."""
JOINED = ("joined", "joined-late")
"""Keys of the share of clients that join."""


@dataclass(frozen=True)
class Measure:
    """One number of a run, a column of the table.

    Attributes:
        key: its name in the paper's numbers and in the page's JSON.
        title: its heading.
        of: the number, from the lines of a run's history; None where the run has none.
        percent: whether it is a share that is shown, and that the paper prints, in per cent.
        better: which way is better; empty: neither.
        digits: digits after the point.
        beside: key of the measure that it averages, compared with the same number of the paper.
        is_share: whether it lies between 0 and 1.
    """

    key: str
    title: str
    of: Reading
    percent: bool = False
    better: Better = "higher"
    digits: int = 2
    beside: str = ""
    is_share: bool = False

    @property
    def scale(self) -> float:
        """The factor from a number to its shown unit: 100 for a share."""
        return 100.0 if self.percent else 1.0

    @property
    def least(self) -> float:
        """The bound below which a number is shown as 0."""
        return 0.5 * 10.0**-self.digits / self.scale

    def number(self, lines: Lines) -> float | None:
        """Return the number in the unit in which it is shown."""
        value = self.of(lines)
        return None if value is None else float(value) * self.scale


P = ParamSpec("P")


def reading(read: Callable[Concatenate[Lines, P], float | None]) -> Callable[P, Reading]:
    """Return a function of lines as a maker of readings, ``last("loss")``.

    It is called with its other arguments alone.
    """
    return lambda *args, **keywords: lambda lines: read(lines, *args, **keywords)


def unmeasured(line: Line) -> bool:
    """Whether fewer than half of a round's clients could evaluate it: the model has diverged."""
    return "round" in line and 2 * line.get("evaluated", 0) < line.get("expected", 0)


def value_of(line: Line, of: LineValue) -> float | None:
    """Return a line's value; None if it was not recorded."""
    return of(line) if callable(of) else line.get(of)


def recorded(lines: Lines, of: LineValue) -> dict[int, float]:
    """Return the values of a history, by the rounds in which one was recorded."""
    return {int(line["round"]): value for line in lines if (value := value_of(line, of)) is not None}


@reading
def first(lines: Lines, of: LineValue) -> float | None:
    """Return the first value recorded."""
    return next(iter(recorded(lines, of).values()), None)


@reading
def last(lines: Lines, of: LineValue) -> float | None:
    """Return the last recorded value; None if clients could not measure later models."""
    for line in reversed(lines):
        if (value := value_of(line, of)) is not None:
            return float(value)
        if unmeasured(line):
            break
    return None


@reading
def late(lines: Lines, key: str, rounds: int) -> float | None:
    """Return the mean over the evaluated ones of the last ``rounds`` rounds.

    None where no client could measure one of them: the other rounds would not speak for it.
    """
    window = [line for line in lines if int(line["round"]) > int(lines[-1]["round"]) - rounds]
    values = [float(line[key]) for line in window if line.get(key) is not None]
    if any(unmeasured(line) and line.get(key) is None for line in window):
        return None
    return fmean(values) if values else None


@reading
def best(lines: Lines, of: LineValue) -> float | None:
    """Return the largest value of the run."""
    values = (value_of(line, of) for line in lines)
    return max((float(value) for value in values if value is not None), default=None)


@reading
def total(lines: Lines, key: str, unit: float = 1.0) -> float | None:
    """Return the sum over all rounds, in units of ``unit``."""
    values = [float(line[key]) for line in lines if line.get(key) is not None]
    return sum(values) / unit if values else None


@reading
def joined_share(lines: Lines, rounds: int = 0, after: int = 0, also: Sequence[str] = ()) -> float | None:
    """Return the share that joined of the clients asked to train.

    Args:
        lines: of the history.
        rounds: number of the run's last rounds that count; 0: all.
        after: only rounds after this one.
        also: other outcomes that count, such as ``refused``: FedALIGN refuses updates.
    """
    chosen = [line for line in lines[-rounds:] if int(line["round"]) > after]
    asked = sum(int(line["asked"]) for line in chosen)
    joined = sum(int(line.get(key, 0)) for line in chosen for key in ("joined", *also))
    return joined / asked if asked else None


def run_measures(metric: Metric = BY_ACCURACY, averaged: bool = True) -> tuple[Measure, ...]:
    """Return the measures by which runs are compared; not every run has all.

    Args:
        metric: the task's primary metric.
        averaged: whether measures over the last `LATE` rounds are among them: runs of no more rounds need none.
    """
    measures = [Measure(ROUNDS, "rounds", last("round"), better="", digits=0)]

    def add(name: str, title: str, column: Column, of: Reading, at_end: Any = None) -> None:
        measure = Measure(
            name, title, of, column.unit == PERCENT, column.better, column.decimals, is_share=column.is_share
        )
        measures.append(measure)
        if averaged and at_end is not None:
            measures.append(replace(measure, key=f"{name}-late", title=f"{title}, last {LATE} rounds", of=at_end))

    columns = shown_in(MEASURE, metric)
    for prefix, whose in (("", ""), ("unseen_", "unseen: ")):
        for column in columns:
            if column.averaged == MEAN:
                name = prefix + column.key
                add(name, whose + column.title, column, last(name), late(name, LATE))
    for column in columns:
        if column.averaged == TOTAL:
            add(column.short, column.title, column, total(column.key, 1e6 if column.unit == BYTES else 1.0))
        elif not column.averaged:
            add("joined", column.title, column, joined_share(), joined_share(LATE))
    return tuple(measures)


@reading
def stayed(lines: Lines, clients: int = 0) -> float | None:
    """Return the share of clients that did not leave for good.

    Args:
        lines: of the history.
        clients: their number; 0: the most that a round asked, where every client that has not left is asked.
    """
    number = clients or max((line["asked"] for line in lines), default=0)
    return 1.0 - sum(line.get("left", 0) for line in lines) / number if number else None


def continued(lines: Lines, rounds: int) -> Lines:
    """Return a run's lines up to a round, the last repeated if it ended before.

    Args:
        lines: of the history.
        rounds: the number that was planned.
    """
    if not lines:
        return lines
    last = lines[-1]
    return [*lines, *({**last, "round": number} for number in range(int(last["round"]) + 1, rounds + 1))]


@reading
def kept(lines: Lines, clients: int, rounds: int) -> float | None:
    """Return the mean share of all clients that joined in a run's last rounds.

    Other than `joined_share` its share is of all clients, also those that have left and are not asked any
    more; and clients that joined count whether or not the server took them in.

    Args:
        lines: of the history.
        clients: their number.
        rounds: number of the run's last rounds that count.
    """
    # Surplus ones came after enough others; FedALIGN refuses updates.
    joined = (line["joined"] + line.get("refused", 0) + line.get("surplus", 0) for line in lines[-rounds:])
    return fmean(number / clients for number in joined) if lines else None


@reading
def rounds_to(lines: Lines, column: str, target: float, higher_is_better: bool = True) -> float | None:
    """Return the first evaluated round in which a column of the history reached a target."""
    for line in lines:
        value = line.get(column)
        if value is not None and (value >= target if higher_is_better else value <= target):
            return float(line["round"])
    return None


@reading
def megabytes_to(lines: Lines, column: str, target: float) -> float | None:
    """Return the training's megabytes until a column reached a target.

    Up and down.
    """
    rounds, megabytes = rounds_to(column, target)(lines), training_megabytes(lines)
    return sum(megabytes[: int(rounds)]) if rounds is not None and megabytes else None


@reading
def megabytes_a_round(lines: Lines) -> float | None:
    """Return the mean training megabytes of the rounds that asked a client."""
    sizes = [megabytes for megabytes, line in zip(training_megabytes(lines), lines, strict=False) if line["asked"]]
    return fmean(sizes) if sizes else None


def training_megabytes(lines: Lines) -> list[float]:
    """Return the megabytes of each round's training, up and down.

    A round that was also evaluated counts as the last one without an evaluation, or else as the next one.
    """
    unevaluated = [
        None if line.get("expected") else (line["bytes_up"] + line["bytes_down"]) / 1e6 if line["asked"] else 0.0
        for line in lines
    ]
    latest = next((value for value in unevaluated if value is not None), None)
    if latest is None:
        return []
    megabytes: list[float] = []
    for value in unevaluated:
        latest = latest if value is None else value
        megabytes.append(latest)
    return megabytes
