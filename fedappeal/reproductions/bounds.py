"""A measured curve beside a theorem's bound: what a computation returns, its columns, its claim and its picture."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from fedappeal.studies.experiment import Arm, Claim, Drawing, Results, at_least
from fedappeal.views.comparison.measures import COLOURS, DASHES, Figure, Measure, last, new_panels


def comparison(at: ArrayLike, measured: ArrayLike, bound: ArrayLike, **more: float) -> Mapping[str, Any]:
    """Return a run's one line.

    Args:
        at: where the bound is held against the measurement, ascending: rounds, precisions.
        measured: above 0, as many.
        bound: above 0, as many.
        more: further numbers of the run.
    """
    curve = np.asarray(measured, dtype=np.float64), np.asarray(bound, dtype=np.float64)
    return {
        "at": np.asarray(at).tolist(),
        "measured": curve[0].tolist(),
        "bound": curve[1].tolist(),
        "room": float(np.log10(curve[1] / curve[0]).min()),
        "first": float(curve[0][0]),
        "end": float(curve[0][-1]),
        "bound-end": float(curve[1][-1]),
        **more,
    }


def columns(what: str, digits: int = 4) -> tuple[Measure, ...]:
    """Return the columns of such a line.

    Args:
        what: is measured.
        digits: after the point.
    """
    return (
        Measure("room", "least log10(bound / measured)", last("room")),
        Measure("end", f"{what}, at the end", last("end"), better="lower", digits=digits),
        Measure("bound-end", "its bound there", last("bound-end"), better="", digits=3),
    )


def below(arm: Arm, what: str) -> Claim:
    """Return the theorem's claim: everywhere a row's measured number is at most its bound."""
    return Claim(f"{arm.name}: {what}", at_least(arm.name, "room", 0.0), arm.group, "powers of ten", inclusive=True)


def drawing(xlabel: str, ylabel: str) -> Drawing:
    """Return a picture of measured curves, a thin line a seed, and their bounds, on logarithmic axes."""

    def draw(results: Results) -> Figure:
        figure, (panels,) = new_panels(3.6 * len(results.arms) + 0.6, 3.9, 1, len(results.arms), sharey=True)
        for axes, arm in zip(panels, results.arms, strict=True):
            lines = [run.lines[0] for run in results.of(arm.name)]
            for key, place in (("bound", 1), ("measured", 0)):
                curves, look = [line[key] for line in lines], {"color": COLOURS[place], "linestyle": DASHES[place]}
                axes.plot(lines[0]["at"], np.transpose(curves), COLOURS[place], alpha=0.3, linewidth=0.7)
                axes.plot(lines[0]["at"], np.exp(np.log(curves).mean(axis=0)), linewidth=1.8, label=key, **look)
            axes.set(xscale="log", yscale="log", xlabel=xlabel)
            ticks = lines[0]["at"][:: len(lines[0]["at"]) // 3 or 1]
            axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
            axes.tick_params(axis="x", which="minor", bottom=False, labelbottom=False)
            axes.set_title(arm.name, fontsize=9)
        panels[0].set_ylabel(ylabel)
        panels[0].plot([], [], color="#444444", alpha=0.5, linewidth=0.7, label="one seed")
        panels[0].legend(fontsize=8)
        return figure

    return draw
