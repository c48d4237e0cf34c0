"""An experiment's curves over the rounds: a mean over seeds, with its spread as a band. Needs matplotlib."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedappeal.studies.experiment import Results, RunResult
from fedappeal.views.comparison.curves import by_round
from fedappeal.views.comparison.figures import COLOURS, DASHES, new_figure, save

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def series(run: RunResult, key: str) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return the rounds of a run in which a value was recorded, and the values."""
    pairs = [(int(line["round"]), float(line[key])) for line in run.lines if line.get(key) is not None]
    return np.array([r for r, _ in pairs], dtype=np.int64), np.array([v for _, v in pairs], dtype=np.float64)


def curve(runs: Sequence[RunResult], key: str) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]:
    """Return rounds, mean and standard deviation over runs, each shape ``(n,)``.

    Rounds that not all runs have (one ended early) are averaged over those that have them. The curve ends where a
    run's model diverged: the others' mean would no longer be of the same runs.
    """
    found = by_round([(run.seed, run.lines) for run in runs], lambda line: line.get(key))
    rounds = list(found)
    means = np.array([np.mean(found[r]) for r in rounds], dtype=np.float64)
    spreads = np.array([np.std(found[r], ddof=1) if len(found[r]) > 1 else 0.0 for r in rounds], dtype=np.float64)
    return np.array(rounds, dtype=np.int64), means, spreads


def draw(
    axes: "Axes",
    results: Results,
    key: str,
    arms: Sequence[str] = (),
    percent: bool = False,
    colours: Mapping[str, int] | None = None,
) -> None:
    """Draw a value over the rounds: a line an arm, with the spread over its seeds as a band.

    Args:
        axes: where.
        results: the runs.
        key: of the history.
        arms: names, in the order of the colours; empty: all.
        percent: show a share in per cent.
        colours: the place in `COLOURS` by an arm's label; other arms take the colours that are left.
    """
    scale = 100.0 if percent else 1.0
    known = dict(colours or {})
    taken = {known[arm.shown] for arm in results.arms if arm.shown in known}
    free = sorted(range(3 * len(COLOURS)), key=lambda n: n % len(COLOURS) in taken)  # taken colours come last
    chosen = [a for name in arms for a in results.arms if a.name == name] if arms else results.arms
    for arm in chosen:
        if not (runs := results.of(arm.name)):
            continue
        place = known[arm.shown] if arm.shown in known else free.pop(0)
        colour, dashes = COLOURS[place % len(COLOURS)], DASHES[place % len(DASHES)]
        rounds, means, spreads = curve(runs, key)
        axes.plot(rounds, scale * means, label=arm.shown, color=colour, linestyle=dashes, linewidth=1.4)
        low = np.maximum(means - spreads, 0.0)  # nothing that a history records is negative
        high = np.minimum(means + spreads, 1.0) if percent else means + spreads
        axes.fill_between(rounds, scale * low, scale * high, color=colour, alpha=0.15, linewidth=0)
    axes.set_xlabel("round")
    axes.grid(alpha=0.3)


Panel = tuple[str, str, bool]
"""One panel of a figure: key of the history, label of the axis, whether in per cent."""


def curves(panels: Sequence[Panel], order: Sequence[str] = ()) -> Callable[[Results, Path], None]:
    """Return a figure: a row of panels over the rounds for each group of arms.

    Args:
        panels: of each row.
        order: labels of the arms, in the order of their colours, which are the same in all groups.
    """
    colours = {label: n for n, label in enumerate(order)}

    def figure(results: Results, stem: Path) -> None:
        groups = results.groups
        picture = new_figure(4.2 * len(panels), 3.0 * len(groups) + 0.3)
        grid = picture.subplots(len(groups), len(panels), squeeze=False)
        for row, (group, arms) in zip(grid, groups.items(), strict=True):
            for axes, (key, label, percent) in zip(row, panels, strict=True):
                draw(axes, results, key, [arm.name for arm in arms], percent, colours)
                axes.set_ylabel(label)
            row[0].set_title(group, loc="left", fontsize=10)
            row[-1].legend(fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
        save(picture, stem)

    return figure
