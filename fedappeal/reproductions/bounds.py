"""A measured curve beside a theorem's bound: what a computation returns, and its picture."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from fedappeal.studies.experiment import Drawing, Results
from fedappeal.views.comparison.measures import COLOURS, DASHES, Figure, new_panels


def comparison(at: ArrayLike, measured: ArrayLike, bound: ArrayLike, **more: float) -> Mapping[str, Any]:
    """Return the one line of a run.

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


def drawing(xlabel: str, ylabel: str) -> Drawing:
    """Return a log-log picture of measured curves, a line a seed, and bounds."""

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
            axes.set_title(arm.shown, fontsize=9)
        panels[0].set_ylabel(ylabel)
        panels[0].plot([], [], color="#444444", alpha=0.5, linewidth=0.7, label="one seed")
        panels[0].legend(fontsize=8)
        return figure

    return draw
