"""MaxFL, figure 1: GM-Appeal beside test accuracy, an algorithm a point, for seen and for unseen clients."""

from collections.abc import Sequence
from statistics import fmean

from fedappeal.studies.experiment import Numbers, Results, Unmeasured
from fedappeal.views.comparison.measures import COLOURS, Figure, new_panels

_COLOURED = ("FedAvg", "MaxFL", "FedProx", "Scaffold", "PerFedAvg", "qFFL", "MW-Fed")


def rank_correlation(x: Sequence[float], y: Sequence[float]) -> float:
    """Return Spearman's coefficient.

    Raises:
        Unmeasured: all values of one side are equal, so that there is none.
    """
    from scipy.stats import spearmanr

    if len(set(x)) < 2 or len(set(y)) < 2:
        raise Unmeasured("all values are equal")
    return float(spearmanr(x, y).statistic)


def rises(number: Numbers, rows: Sequence[str], across: str, up: str) -> float:
    """Return the rank correlation of two columns over some rows."""
    return rank_correlation([number(row, across) for row in rows], [number(row, up) for row in rows])


def figure(results: Results) -> Figure:
    """Draw two panels a group with means, seeds and the paper's numbers.

    A large dot is a mean, a small one a seed, a cross the paper's number.
    """
    groups = results.groups
    picture, panels = new_panels(10.5, 3.3 * len(groups) + 0.6, len(groups), 2)
    handles = {}
    for row, (group, arms) in zip(panels, groups.items(), strict=True):
        for axes, letter, clients, seen in zip(row, "ab", ("seen", "unseen"), ("", "unseen-"), strict=True):
            keys = f"{seen}gm-appeal-late", f"{seen}accuracy-late"
            across, up = map(results.experiment.measure, keys)
            for arm in arms:
                colour = COLOURS[_COLOURED.index(arm.label) % len(COLOURS)]
                x, y = results.numbers(arm.name, across), results.numbers(arm.name, up)
                (handles["small: one seed"],) = axes.plot(x, y, "o", color=colour, markersize=3, alpha=0.6)
                (handles[arm.label],) = axes.plot([fmean(x)], [fmean(y)], "o", color=colour, markersize=8)
                at = [[arm.printed(measure)] for measure in (across, up)]
                (paper,) = axes.plot(*at, "X", color=colour, markersize=8, alpha=0.55)
                if arm.label == "MaxFL":
                    handles["as the paper prints it"] = paper
            axes.set(xlabel=f"({letter}) {clients} clients: GM-Appeal", ylabel="test accuracy %", xlim=(-0.001, 0.45))
            axes.set_xscale("symlog", linthresh=0.02, linscale=0.6)
            axes.set_xticks((0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.4), ("0", "0.01", "0.02", "0.05", "0.1", "0.2", "0.4"))
        row[0].set_title(group, loc="left", fontsize=10)
    picture.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=4, fontsize=9, frameon=False)
    return picture
