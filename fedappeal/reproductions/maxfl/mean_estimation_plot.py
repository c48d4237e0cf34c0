"""The pictures of `fedappeal.reproductions.maxfl.mean_estimation`: MaxFL's figures 4 and 5. Needs matplotlib."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedappeal.reproductions.maxfl.mean_estimation import (
    HETEROGENEITY,
    STABILIZER,
    federated,
    lemma_a1,
    objective,
    theorem_a1,
)
from fedappeal.studies.experiment import Results
from fedappeal.views.comparison.figures import new_figure, save
from strategies import FedAvg, MaxFL

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FEDAVG, MAXFL, BOUND, CLIENT = "#0072b2", "#d55e00", "#666666", "#b0b0b0"

SOLVED = ["FedAvg's solution", "MaxFL's solution"]

TWO = {"$\\hat\\gamma_G$ = 0.5": (-0.5, 0.5), "$\\hat\\gamma_G$ = 3": (-3.0, 3.0)}
"""Estimates of two clients, of little and of much heterogeneity."""

AROUND = 4.0
"""How far a panel of figure 5 goes beyond the outermost estimates."""


def solutions(estimates: Sequence[float]) -> tuple[float, list[float]]:
    """Return where the strategies themselves end: FedAvg's model, and MaxFL's from each client's estimate."""
    (_, average) = federated(FedAvg(), estimates, 0.0, 1)
    ends = [federated(MaxFL(stabilizer=STABILIZER), estimates, start, 200)[-1] for start in estimates]
    return average, ends


def figure_4(results: Results, stem: Path) -> None:
    """Draw (a) from what was measured, (b) from the strategies themselves."""
    figure = new_figure(11, 3.9)
    left, right = figure.subplots(1, 2)
    _appeal(left, results)
    _landscapes(right)
    handles, labels = right.get_legend_handles_labels()
    solved = [labels.index(label) for label in SOLVED]
    figure.legend([handles[i] for i in solved], SOLVED, loc="outside lower right", ncols=2, frameon=False)
    save(figure, stem)


def figure_5(results: Results, stem: Path) -> None:
    """Draw the objectives of three clients, and where the strategies end; the estimates are a case's true means."""
    cases: dict[tuple[float, ...], str] = {}
    for arm in results.arms:  # what differs in the noise alone is one panel
        cases.setdefault(tuple(arm.settings["means"]), arm.group.partition(": ")[2])
    figure = new_figure(11, 3.4)
    panels = figure.subplots(1, len(cases), squeeze=False)[0]
    for axes, letter, (estimates, name) in zip(panels, "abc", cases.items(), strict=True):
        _clients(axes, f"({letter}) three clients, {name}", estimates)
    panels[0].set_ylabel("objective (equation 3)")
    handles, labels = panels[-1].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
    save(figure, stem)


def _appeal(axes: "Axes", results: Results) -> None:
    x = np.array(HETEROGENEITY)
    for arm, label, colour, style in (
        ("MaxFL", "MaxFL", MAXFL, "o-"),
        ("FedAvg", "FedAvg", FEDAVG, "s-"),
        ("MaxFL (ReLU)", "MaxFL with ReLU", "black", "x"),
    ):
        if runs := results.of(arm):
            y = np.mean([run.lines[0]["gm_appeal"] for run in runs], axis=0)
            axes.plot(x, np.where(y > 0, y, np.nan), style, color=colour, label=label, markersize=4.5)
    bound = np.array([lemma_a1(squared**0.5) for squared in x])
    axes.plot(x[bound <= 1], bound[bound <= 1], "--", color=FEDAVG, alpha=0.6, label="FedAvg at most (Lemma A.1)")
    least = np.full(len(x), theorem_a1())
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


def _landscapes(axes: "Axes") -> None:
    w = np.linspace(-6, 6, 601)
    for (label, estimates), style in zip(TWO.items(), ("-", "--"), strict=True):
        axes.plot(w, objective(w, np.array(estimates)), style, color="black", label=label)
        average, ends = solutions(estimates)
        _mark(axes, estimates, [average], ends)
    axes.set(
        title="(b) two clients: one minimum, or two far apart",
        xlabel="model $w$",
        ylabel="objective (equation 3)",
        ylim=(0.48, 1.02),
    )
    handles, labels = axes.get_legend_handles_labels()
    curves = [labels.index(label) for label in TWO]
    axes.legend([handles[i] for i in curves], list(TWO), fontsize=8, loc="lower right")


def _clients(axes: "Axes", title: str, estimates: Sequence[float]) -> None:
    w = np.linspace(min(estimates) - AROUND, max(estimates) + AROUND, 1201)
    for k, estimate in enumerate(estimates):
        label = "one client's $\\sigma(F_k - \\rho_k)$" if k == 0 else None
        axes.plot(w, objective(w, np.array([estimate])), color=CLIENT, linewidth=1, label=label)
    axes.plot(w, objective(w, np.array(estimates)), color="black", label="MaxFL's objective")
    average, ends = solutions(estimates)
    best = min(ends, key=lambda end: float(objective(np.array(end), np.array(estimates))))
    _mark(axes, estimates, [average], [best])
    axes.set(title=title, xlabel="model $w$", ylim=(0.48, 1.02))


def _mark(axes: "Axes", estimates: Sequence[float], average: Sequence[float], maxfl: Sequence[float]) -> None:
    """Mark FedAvg's solution as an open square, MaxFL's as a dot: where they are the same, both are seen."""
    open_square = {"marker": "s", "markersize": 11, "markerfacecolor": "none", "markeredgewidth": 2, "color": FEDAVG}
    for name, models, style in (
        ("FedAvg", average, open_square),
        ("MaxFL", maxfl, {"marker": "o", "markersize": 7, "color": MAXFL}),
    ):
        heights = objective(np.array(models), np.array(estimates))
        axes.plot(models, heights, linestyle="none", label=f"{name}'s solution", **style)  # type: ignore[arg-type]
