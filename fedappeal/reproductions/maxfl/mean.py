"""MaxFL, figures 4 and 5: clients that estimate a mean (appendix A.1, appendix C)."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from fedappeal.reproductions.maxfl import mean_estimation as mean
from fedappeal.studies.experiment import Numbers, Results
from fedappeal.views.comparison.measures import Figure, Lines, new_figure, reading
from strategies import FedAvg, MaxFL

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FEDAVG, MAXFL, CLIENT = "#0072b2", "#d55e00", "#b0b0b0"

TWO = {"(b) two clients, $\\hat\\gamma_G$ = 0.5": (-0.5, 0.5), "(b) two clients, $\\hat\\gamma_G$ = 3": (-3.0, 3.0)}
"""Estimates of two clients, of little and of much heterogeneity."""

AROUND = 4.0
"""How far a panel goes beyond the outermost estimates."""


def figure_4(results: Results) -> Figure:
    """Draw (a) from what was measured, (b) from the strategies themselves."""
    figure = new_figure(14, 3.9)
    left, *others = figure.subplots(1, 3)
    _appeal(left, results)
    _objectives(figure, others, TWO)
    return figure


def figure_5(results: Results) -> Figure:
    """Draw three clients' objectives, and where the strategies end.

    The estimates are a case's true means.
    """
    cases: dict[tuple[float, ...], str] = {}
    for arm in results.arms:  # what differs in the noise alone is one panel
        cases.setdefault(tuple(arm.settings["means"]), arm.group.partition(": ")[2])
    titled = zip("abc", cases.items(), strict=True)
    figure = new_figure(11, 3.4)
    panels = figure.subplots(1, len(cases), squeeze=False)[0]
    _objectives(figure, panels, {f"({letter}) three clients, {name}": means for letter, (means, name) in titled})
    return figure


def _appeal(axes: "Axes", results: Results) -> None:
    x = np.array(mean.HETEROGENEITY)
    for arm, label, colour, style in (
        ("maxfl", "MaxFL", MAXFL, "o-"),
        ("fedavg", "FedAvg", FEDAVG, "s-"),
        ("maxfl-relu", "MaxFL with ReLU", "black", "x"),
    ):
        if runs := results.of(arm):
            y = np.mean([run.lines[0]["gm_appeal"] for run in runs], axis=0)
            axes.plot(x, np.where(y > 0, y, np.nan), style, color=colour, label=label, markersize=4.5)
    bound = np.array([mean.lemma_a1(squared**0.5) for squared in x])
    axes.plot(x[bound <= 1], bound[bound <= 1], "--", color=FEDAVG, alpha=0.6, label="FedAvg at most (Lemma A.1)")
    least = np.full(len(x), mean.theorem_a1())
    axes.plot(x, least, "--", color=MAXFL, alpha=0.6, label="MaxFL at least (Theorem A.1)")
    axes.set(
        title="(a) two clients: MaxFL's appeal stays, FedAvg's decays",
        xlabel="heterogeneity $\\gamma_G^2$, in units of $\\gamma^2$",
        xticks=range(0, 21, 4),
        ylabel="expected GM-Appeal",
        yscale="log",
        ylim=(1e-3, 1.3),
    )
    axes.legend(fontsize=8, loc="lower left")


def _objectives(figure: Figure, panels: Iterable["Axes"], cases: Mapping[str, Sequence[float]]) -> None:
    """Draw the objective with its clients' parts, and the solutions of the strategies' own rounds.

    FedAvg's is an open square, MaxFL's, its lowest minima, a dot: where they are the same, both are seen.
    """
    strategy = MaxFL(stabilizer=mean.STABILIZER)
    for axes, (title, means) in zip(panels, cases.items(), strict=True):
        estimates = np.array(means)
        w = np.linspace(estimates.min() - AROUND, estimates.max() + AROUND, 1201)
        parts = np.stack([mean.objective(w, estimate[None]) for estimate in estimates], axis=1)
        labels = ["one client's $\\sigma(F_k - \\rho_k)$", *"_" * (len(means) - 1)]
        axes.plot(w, parts, color=CLIENT, linewidth=1, label=labels)
        axes.plot(w, mean.objective(w, estimates), color="black", label="MaxFL's objective")
        average = np.array(mean.federated_models(FedAvg(), means, 0.0, 1)[-1:])
        square: Any = {"markersize": 11, "fillstyle": "none", "markeredgewidth": 2, "label": "FedAvg's solution"}
        axes.plot(average, mean.objective(average, estimates), "s", color=FEDAVG, **square)
        minima = np.array([mean.federated_models(strategy, means, start, 200)[-1] for start in means])
        heights = mean.objective(minima, estimates)
        lowest = heights <= heights.min() + 1e-9
        axes.plot(minima[lowest], heights[lowest], "o", color=MAXFL, markersize=7, label="MaxFL's solution")
        axes.set(title=title, xlabel="model $w$", ylabel="objective (equation 3)", ylim=(0.48, 1.02))
        handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)


@reading
def at(lines: Lines, squared: float) -> float | None:
    """Return the GM-Appeal at a value of gamma_G^2."""
    return float(dict(zip(lines[0]["heterogeneity"], lines[0]["gm_appeal"], strict=True))[squared])


def below_lemma_a1(number: Numbers, shown: Sequence[int]) -> float:
    """Return lemma A.1's bound less FedAvg's GM-Appeal at some gamma_G^2."""
    return min(mean.lemma_a1(squared**0.5) - number("fedavg", f"at-{squared}") for squared in shown)


def decays(number: Numbers, shown: Sequence[int]) -> float:
    """Return whether FedAvg's GM-Appeal falls with gamma_G^2 as steeply as lemma A.1's bound."""
    return min(
        number("fedavg", f"at-{m}") * mean.lemma_a1(n**0.5) - number("fedavg", f"at-{n}") * mean.lemma_a1(m**0.5)
        for m, n in pairwise(shown)
    )


def above_theorem_a1(number: Numbers, shown: Sequence[int]) -> float:
    """Return MaxFL's GM-Appeal less theorem A.1's constant at some gamma_G^2."""
    return min(number("maxfl", f"at-{squared}") - mean.theorem_a1() for squared in shown)
