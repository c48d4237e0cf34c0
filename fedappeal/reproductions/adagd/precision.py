"""ADA-GD, figures 3 and 8 to 11: what defections cost under FedAvg, by precision, heterogeneity and local steps."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fedappeal.studies.experiment import Claim, Numbers, Results
from fedappeal.studies.plan import slug
from fedappeal.views.comparison.measures import COLOURS, DASHES, Figure, new_panels

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PRECISIONS = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
"""epsilon; with 0 no agent ever leaves."""

DATA = ("", "CIFAR-10")
"""Data sets as rows name them; empty: Fashion-MNIST."""

_ACCURACIES = {
    "accuracy": "average accuracy",
    "population": "population accuracy",
    "lowest": "lowest agent's accuracy",
    "highest": "highest agent's accuracy",
}


def with_data_name(text: str, data: str) -> str:
    """Return a heading with the data set before it, where it is not Fashion-MNIST."""
    return f"{data}, {text}" if data else text


@dataclass(frozen=True)
class Sweep:
    """FedAvg's runs over heterogeneity, local steps and one setting more, on one data set.

    Attributes:
        kept: q, in per cent.
        steps: K, ascending.
        data: one of `DATA`.
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

    def claims(self) -> list[Claim]:
        """Return the paper's claims, and one of ours."""
        claims = [self._decline(key, kept) for kept in self.kept for key in ("accuracy", "population")]
        claims += [self._monotone(key) for key in _ACCURACIES]
        return [*claims, *map(self._lower, _ACCURACIES), self._wider()]

    def _decline(self, key: str, kept: int) -> Claim:
        def margin(number: Numbers) -> float:
            return min(
                number(self.cell(kept, k, 0.0), key) - number(self.cell(kept, k, 1.0), key) for k in self.steps
            )

        text = f"the {_ACCURACIES[key]} is lower with epsilon = 1 than where no agent leaves, for each K"
        return Claim(text, margin, with_data_name(f"q = {kept / 100:g}", self.data), "points")

    def _monotone(self, key: str) -> Claim:
        def margin(number: Numbers) -> float:
            falls = [
                number(self.cell(kept, steps, after), key) <= number(self.cell(kept, steps, before), key) + 1
                for kept in self.kept
                for steps in self.steps
                for before, after in itertools.pairwise(PRECISIONS)
            ]
            return sum(falls) - 0.9 * len(falls)

        text = f"the {_ACCURACIES[key]} falls, or stays within a point, in nine of ten steps of epsilon"
        return Claim(text, margin, with_data_name("all q", self.data), "steps", inclusive=True, ours=True)

    def _lower(self, key: str) -> Claim:
        return self._with_heterogeneity(f"the {_ACCURACIES[key]} is lower", lambda number, row: -number(row, key))

    def _wider(self) -> Claim:
        return self._with_heterogeneity(
            "the agents lie further apart", lambda number, row: number(row, "highest") - number(row, "lowest")
        )

    def _with_heterogeneity(self, what: str, value: Callable[[Numbers, str], float]) -> Claim:
        """Return the claim that a value's mean over epsilon rises with q.

        From each q to the next, with the largest K.
        """
        steps, precisions = self.steps[-1], PRECISIONS[1:]

        def margin(number: Numbers) -> float:
            sums = [sum(value(number, self.cell(kept, steps, p)) for p in precisions) for kept in self.kept]
            return min(more - less for less, more in itertools.pairwise(sums)) / len(precisions)

        text = f"with more heterogeneity {what}, over all epsilon (K = {steps})"
        return Claim(text, margin, with_data_name("all q", self.data), "points")


_FIGURE_3 = tuple(Sweep(data=data) for data in DATA)

_MORE = (70, 90, 100), (1, 20, 100)
"""q and K of figures 8 to 11."""

_FIGURE_8 = Sweep(*_MORE, "", "eta", (0.01, 0.03, 0.1, 0.3))
_FIGURE_9 = Sweep(*_MORE)


def claims_of_figure3() -> list[Claim]:
    """Return the claims of figure 3."""
    return [claim for sweep in _FIGURE_3 for claim in sweep.claims()]


def claims_of_figure9() -> list[Claim]:
    """Return the claims of figures 9 to 11, which are figure 3's."""
    return _FIGURE_9.claims()


def draw_figure_3(results: Results) -> Figure:
    """Draw figure 3."""
    return _draw(results, _FIGURE_3)


def draw_figure_9(results: Results) -> Figure:
    """Draw figures 9 to 11."""
    return _draw(results, (_FIGURE_9,))


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
