"""The picture of `fedappeal.experiments.mean_estimation`: MaxFL's figures 4 and 5. Needs matplotlib."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedappeal.experiments.mean_estimation import STABILIZER, federated, objective
from strategies import FedAvg, MaxFL

FEDAVG, MAXFL, BOUND, CLIENT = "#0072b2", "#d55e00", "#666666", "#b0b0b0"

TWO = {"$\\hat\\gamma_G$ = 0.5": (-0.5, 0.5), "$\\hat\\gamma_G$ = 3": (-3.0, 3.0)}
"""Estimates of two clients, of little and of much heterogeneity."""

THREE = {
    "(c) all alike": (-0.6, 0.0, 0.6),
    "(d) all different": (-7.0, -2.0, 8.0),
    "(e) two alike": (-3.5, -2.5, 6.0),
}
"""Estimates of three clients, as in figure 5; the paper gives no numbers."""


def solutions(estimates: Sequence[float]) -> tuple[float, list[float]]:
    """Return where the strategies themselves end: FedAvg's model, and MaxFL's from each client's estimate."""
    (_, average) = federated(FedAvg(), estimates, 0.0, 1)
    ends = [federated(MaxFL(stabilizer=STABILIZER), estimates, start, 200)[-1] for start in estimates]
    return average, ends


def picture(two: list[dict[str, Any]], path: Path) -> None:
    """Draw figure 4(a) from measured rows, figures 4(b) and 5 from the strategies; write ``path`` .png and .svg."""
    figure = Figure(figsize=(11, 6.6), layout="constrained")
    axes = figure.subplot_mosaic("aaabbb;ccddee")
    _appeal(axes["a"], two)
    _landscapes(axes["b"])
    for (title, estimates), name in zip(THREE.items(), "cde", strict=True):
        _clients(axes[name], title, estimates)
    axes["c"].set_ylabel("objective (equation 3)")
    handles, labels = axes["e"].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
    figure.savefig(path.with_suffix(".png"), dpi=90)
    figure.savefig(path.with_suffix(".svg"))


def _appeal(axes: Axes, rows: list[dict[str, Any]]) -> None:
    x = [row["heterogeneity"] for row in rows]
    for name, label, colour, style in (
        ("maxfl", "MaxFL", MAXFL, "o-"),
        ("fedavg", "FedAvg", FEDAVG, "s-"),
        ("relu", "MaxFL with ReLU", "black", "x"),
    ):
        y = np.array([row[name] for row in rows])
        axes.plot(x, np.where(y > 0, y, np.nan), style, color=colour, label=label, markersize=4.5)
    bounded = [row for row in rows if row["lemma_a1"] <= 1]
    axes.plot(
        [row["heterogeneity"] for row in bounded],
        [row["lemma_a1"] for row in bounded],
        "--",
        color=FEDAVG,
        alpha=0.6,
        label="FedAvg at most (Lemma A.1)",
    )
    axes.plot(
        x, [row["theorem_a1"] for row in rows], "--", color=MAXFL, alpha=0.6, label="MaxFL at least (Theorem A.1)"
    )
    axes.set(
        title="(a) two clients: MaxFL's appeal stays, FedAvg's decays",
        xlabel="heterogeneity $\\gamma_G^2$, in units of $\\gamma^2$",
        xticks=range(0, 21, 4),
        ylabel="expected GM-Appeal",
        yscale="log",
        ylim=(1e-3, 1.3),
    )
    axes.legend(fontsize=8, loc="lower left")


def _landscapes(axes: Axes) -> None:
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


def _clients(axes: Axes, title: str, estimates: Sequence[float]) -> None:
    w = np.linspace(-10, 11, 841)
    for k, estimate in enumerate(estimates):
        label = "one client's $\\sigma(F_k - \\rho_k)$" if k == 0 else None
        axes.plot(w, objective(w, np.array([estimate])), color=CLIENT, linewidth=1, label=label)
    axes.plot(w, objective(w, np.array(estimates)), color="black", label="MaxFL's objective")
    average, ends = solutions(estimates)
    best = min(ends, key=lambda end: float(objective(np.array(end), np.array(estimates))))
    _mark(axes, estimates, [average], [best])
    axes.set(title=f"{title[:3]} three clients, {title[4:]}", xlabel="model $w$", ylim=(0.48, 1.02))


def _mark(axes: Axes, estimates: Sequence[float], average: Sequence[float], maxfl: Sequence[float]) -> None:
    """Mark FedAvg's solution as an open square, MaxFL's as a dot: where they are the same, both are seen."""
    open_square = {"marker": "s", "markersize": 11, "markerfacecolor": "none", "markeredgewidth": 2, "color": FEDAVG}
    for name, models, style in (
        ("FedAvg", average, open_square),
        ("MaxFL", maxfl, {"marker": "o", "markersize": 7, "color": MAXFL}),
    ):
        heights = objective(np.array(models), np.array(estimates))
        axes.plot(models, heights, linestyle="none", label=f"{name}'s solution", **style)  # type: ignore[arg-type]
