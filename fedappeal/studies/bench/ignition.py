"""The ignition point: the goodwill at which half of the seeds live, with its interval, and the curves' picture.

A seed's own point lies between the last level at which its run dies and the first at which it lives, so shares by
level are the curve; isotonic regression (scipy) makes it rise, and exact binomial intervals (scipy) go around it.
"""

from dataclasses import dataclass
from pathlib import Path

from fedappeal.studies.bench.bench_results import BenchResults
from fedappeal.studies.bench.design import BASELINE, CORE, TASKS, Cell
from fedappeal.views.comparison.measures import COLOURS, new_figure, save

LIVES = 20.0
"""A run lives when at least this many per cent of its clients join in its last free rounds."""
HALF = 0.5


@dataclass(frozen=True)
class Level:
    """The outcome of a strategy's runs at one level of goodwill.

    Attributes:
        goodwill: number of mandatory rounds.
        lived: runs that live.
        runs: their number.
        low: lower end of the 95 % interval of the share that lives.
        high: upper end.
    """

    goodwill: int
    lived: int
    runs: int
    low: float
    high: float


def survival(results: BenchResults, task: str, strategy: str) -> tuple[Level, ...]:
    """Return a strategy's survival by level of goodwill; empty if a run lacks it.

    A run that ended in a mandatory round does not tell who joins.
    """
    from scipy import stats

    levels, rows = [], results.cells()
    for goodwill in TASKS[task].goodwill:
        cell = Cell(task, CORE, goodwill, strategy)
        numbers = results.numbers(cell, "kept").values()
        if cell not in rows or len(numbers) < len(rows[cell].seeds):
            return ()
        lived = sum(number >= LIVES for number in numbers)
        ends = stats.binomtest(lived, len(numbers)).proportion_ci()
        levels.append(Level(goodwill, lived, len(numbers), float(ends.low), float(ends.high)))
    return tuple(levels)


def ignition(levels: tuple[Level, ...]) -> str:
    """Return the lowest level with half the seeds alive, such as ``3 [2, 6]``.

    With its 95 % interval.

    ``>6`` stands for a point beyond the levels: the curve is censored there.
    """
    from scipy.optimize import isotonic_regression

    rising = isotonic_regression([level.lived / level.runs for level in levels], weights=[x.runs for x in levels]).x
    shares = (rising, [level.high for level in levels], [level.low for level in levels])
    point, low, high = (
        next(
            (str(level.goodwill) for level, share in zip(levels, of, strict=True) if share >= HALF),
            f">{levels[-1].goodwill}",
        )
        for of in shares
    )
    return f"{point} [{low}, {high}]"


def draw(curves: dict[tuple[str, str], tuple[Level, ...]], stem: Path) -> None:
    """Draw survival curves: a row a task, a column a strategy.

    FedAvg's curve is in each, in grey.

    Args:
        curves: the levels by task and strategy.
        stem: path without an ending.
    """
    tasks = list(dict.fromkeys(task for task, _ in curves))
    strategies = list(dict.fromkeys(name for _, name in curves if name != BASELINE)) or [BASELINE]
    picture = new_figure(1.15 * len(strategies) + 1, 1.5 * len(tasks) + 0.5)
    grid = picture.subplots(len(tasks), len(strategies), squeeze=False, sharey=True, sharex="row")
    for row, task in zip(grid, tasks, strict=True):
        for axes, strategy in zip(row, strategies, strict=True):
            for name, colour in ((BASELINE, "#999999"), (strategy, COLOURS[0])):
                levels = curves.get((task, name), ())
                goodwill, shares = [x.goodwill for x in levels], [x.lived / x.runs for x in levels]
                axes.plot(goodwill, shares, color=colour, marker="o", markersize=2.5, linewidth=1.2)
                if name == strategy:
                    axes.fill_between(goodwill, [x.low for x in levels], [x.high for x in levels], alpha=0.2)
            axes.axhline(HALF, color="#000000", linewidth=0.5, linestyle=":")
            axes.set_title(strategy.rpartition(":")[2], fontsize=7.5)
            axes.set_xticks(TASKS[task].goodwill)
            axes.set_ylim(-0.05, 1.05)
            axes.tick_params(labelsize=6.5)
        row[0].set_ylabel(task, fontsize=8)
    picture.supxlabel("goodwill: mandatory rounds (grey: FedAvg; band: exact 95 % interval)", fontsize=8)
    picture.supylabel("share of seeds that live", fontsize=8)
    save(picture, stem)
