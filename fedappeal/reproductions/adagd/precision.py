"""ADA-GD, figures 3 and 8 to 11: what defections cost under FedAvg, by precision, heterogeneity and local steps."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from fedappeal.studies.experiment import Numbers, Results
from fedappeal.studies.plan import slug
from fedappeal.views.comparison.measures import COLOURS, DASHES, Figure, new_panels

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PRECISIONS = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
"""epsilon; with 0 no agent ever leaves."""


def with_data_name(text: str, data: str) -> str:
    """Return a heading with the data set before it, where it is not Fashion-MNIST."""
    return f"{data}, {text}" if data else text


@dataclass(frozen=True)
class Sweep:
    """FedAvg's runs over heterogeneity, local steps and one setting more, on one data set.

    Attributes:
        kept: q, in per cent.
        steps: K, ascending.
        data: the data set as rows name it; empty: Fashion-MNIST.
        over: the setting: ``epsilon``, or ``eta`` where no agent leaves.
        values: of that setting, ascending.
    """

    kept: tuple[int, ...] = (50, 90, 100)
    steps: tuple[int, ...] = (1, 5, 20)
    data: str = ""
    over: str = "epsilon"
    values: tuple[float, ...] = PRECISIONS

    def cell(self, kept: int, steps: int, value: float) -> str:
        """Return the key of one setting's row."""
        return slug(with_data_name(f"q {kept / 100:g}, K {steps}, {self.over} {value:g}", self.data))

    def rows(self, kept: int, steps: int) -> dict[float, str]:
        """Return the rows' keys of a q and K by the setting's values."""
        return {value: self.cell(kept, steps, value) for value in self.values}


_MORE = (70, 90, 100), (1, 20, 100)
"""q and K of figures 8 to 11."""
SWEEPS = {"fmnist": Sweep(), "cifar10": Sweep(data="CIFAR-10"), "tuned": Sweep(*_MORE)}
"""Figure 3's two parts, and figures 9 to 11, as claims name them."""
_FIGURE_8 = Sweep(*_MORE, "", "eta", (0.01, 0.03, 0.1, 0.3))


def declines(number: Numbers, key: str, sweep: str, kept: int) -> float:
    """Return how much lower a column is with epsilon = 1 than where no agent leaves.

    For the K where that is least.
    """
    of = SWEEPS[sweep]
    return min(number(of.cell(kept, k, 0.0), key) - number(of.cell(kept, k, 1.0), key) for k in of.steps)


def falls(number: Numbers, key: str, sweep: str) -> float:
    """Return how many steps of epsilon, beyond nine in ten, lower a column.

    A step that raises it by a point at most counts as well.
    """
    of = SWEEPS[sweep]
    rows = [list(of.rows(kept, steps).values()) for kept in of.kept for steps in of.steps]
    falling = [number(after, key) <= number(before, key) + 1 for row in rows for before, after in pairwise(row)]
    return sum(falling) - 0.9 * len(falling)


def lower(number: Numbers, key: str, sweep: str) -> float:
    """Return the least fall of a column's mean over epsilon from one q to the next."""
    return rises(lambda row: -number(row, key), SWEEPS[sweep])


def wider(number: Numbers, sweep: str) -> float:
    """Return the least rise of the agents' distance from one q to the next."""
    return rises(lambda row: number(row, "highest") - number(row, "lowest"), SWEEPS[sweep])


def rises(value: Callable[[str], float], sweep: Sweep) -> float:
    """Return the least rise of a mean over epsilon from one q to the next.

    With the largest K.
    """
    sums = [sum(value(sweep.cell(q, sweep.steps[-1], p)) for p in PRECISIONS[1:]) for q in sweep.kept]
    return min(more - less for less, more in pairwise(sums)) / len(PRECISIONS[1:])


def draw_figure_3(results: Results) -> Figure:
    """Draw figure 3."""
    return _draw(results, (SWEEPS["fmnist"], SWEEPS["cifar10"]))


def draw_figure_9(results: Results) -> Figure:
    """Draw figures 9 to 11."""
    return _draw(results, (SWEEPS["tuned"],))


def draw_figure_8(results: Results) -> Figure:
    """Draw the final accuracy by eta: a panel each q, a curve each K."""
    kept = _FIGURE_8.kept
    figure, (panels,) = new_panels(3.8 * len(kept), 3.2, 1, len(kept), sharey=True)
    for axes, q in zip(panels, kept, strict=True):
        _by_steps(axes, results, _FIGURE_8, q, "accuracy")
        axes.set_xscale("log")
        axes.set_title(f"q = {q / 100:g}", fontsize=11)
        axes.set_xlabel("eta")
    panels[0].set_ylabel("average accuracy %")
    of = panels[0].get_legend_handles_labels()
    figure.legend(*of, loc="outside lower center", ncols=3, fontsize=9, title="mean; dots: seeds", title_fontsize=8)
    return figure


def _draw(results: Results, sweeps: Sequence[Sweep]) -> Figure:
    """Draw the accuracies by epsilon: a row each part, a column each q.

    The parts are figure 3's; a q has a column if it has runs.
    """
    groups = results.groups
    shown = [
        (with_data_name(f"q = {kept / 100:g}", sweep.data), sweep, kept, steps)
        for sweep in sweeps
        for kept in sweep.kept
        if (steps := [k for k in sweep.steps if with_data_name(f"q = {kept / 100:g}, K = {k}", sweep.data) in groups])
    ]
    figure, grid = new_panels(3.8 * len(shown) + 1, 9, 3, len(shown), sharex=True, sharey="row")
    for column, (heading, sweep, kept, steps) in zip(grid.T, shown, strict=True):
        _by_steps(column[0], results, sweep, kept, "accuracy")
        _by_steps(column[1], results, sweep, kept, "population")
        rows = sweep.rows(kept, steps[-1])
        for key, place, label in (("highest", 3, "highest"), ("accuracy", 7, "mean"), ("lowest", 4, "lowest")):
            by_setting(column[2], results, rows, key, COLOURS[place], f"{label}, K = {steps[-1]}")
        column[0].set_title(heading, fontsize=11)
        column[2].set_xlabel("epsilon (0: no agent leaves)")
    for axes, label in zip(grid[:, 0], ("(a) average", "(b) population", "(c) single agents"), strict=True):
        axes.set_ylabel(f"{label}: accuracy %")
        axes.legend(fontsize=9, loc="lower left", title="mean; dots: seeds", title_fontsize=8)
    for axes in grid.flat:
        axes.set_ylim(0, 100)
    return figure


def _by_steps(axes: "Axes", results: Results, sweep: Sweep, kept: int, key: str) -> None:
    """Draw a column as one curve for each K."""
    for steps, colour in zip(sweep.steps, COLOURS, strict=False):
        by_setting(axes, results, sweep.rows(kept, steps), key, colour, f"K = {steps}")


def by_setting(axes: "Axes", results: Results, rows: Mapping[float, str], key: str, colour: str, label: str) -> None:
    """Draw a column's means by a setting as one curve, and a dot a seed."""
    measure = results.experiment.measure(key)
    points = [(p, values) for p, arm in rows.items() if (values := results.numbers(arm, measure))]
    if not points:
        return
    for p, values in points:
        axes.plot([p] * len(values), values, "o", color=colour, markersize=2.5, alpha=0.5)
    axes.plot(
        [p for p, _ in points],
        [float(np.mean(values)) for _, values in points],
        color=colour,
        linestyle=DASHES[COLOURS.index(colour) % len(DASHES)],
        marker="o",
        markersize=3.5,
        linewidth=1.4,
        label=label,
    )
