"""MaxFL, figure 6: mean training loss against mean test loss, over the rounds."""

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from fedappeal.reproductions.maxfl.readings import correlation
from fedappeal.studies.experiment import Contrast, Results
from fedappeal.studies.pictures import curve
from fedappeal.views.comparison.measures import COLOURS, Figure, Lines, new_panels, reading, unmeasured

Pairs = NDArray[np.float64]

_READINGS: Mapping[str, Callable[[Pairs], float]] = {
    "first-test": lambda pairs: pairs[0, 0],
    "gap": lambda pairs: pairs[-1, 0] - pairs[-1, 1],
    "largest-gap": lambda pairs: np.abs(pairs[:, 0] - pairs[:, 1]).max(),
}


def _pairs(lines: Lines) -> Pairs:
    """Return test and training loss by evaluated round, ``(n, 2)``; n = 0 if diverged."""
    if any(unmeasured(line) for line in lines):
        return np.empty((0, 2))
    return np.array([(line["loss"], line["train_loss"]) for line in lines if "train_loss" in line]).reshape(-1, 2)


@reading
def read(lines: Lines, what: str) -> float | None:
    """Return the first test loss, the last gap between both losses, or the largest one."""
    return float(_READINGS[what](pairs)) if (pairs := _pairs(lines)).size else None


@reading
def correlated(lines: Lines) -> float | None:
    """Return the correlation of both losses over the rounds; None if the model diverged."""
    return None if any(map(unmeasured, lines)) else correlation("loss", "train_loss")(lines)


def figure(results: Results) -> Figure:
    """Draw both losses, and their gap with its claimed bound, a column a row."""
    wide = len(results.arms)
    picture, panels = new_panels(3.8 * wide, 5.4, 2, wide, height_ratios=(3, 2), sharex="col")
    margins = [claim.margin for claim in results.experiment.claims if isinstance(claim.margin, Contrast)]
    bounds = {margin.one[0]: margin.other for margin in margins if margin.one[1] == "largest-gap"}
    for above, below, arm in zip(*panels, results.arms, strict=True):
        for key, label, colour, style in (
            ("loss", "test loss, mean of $f_k(w)$", COLOURS[0], "-"),
            ("train_loss", "training loss, mean of $F_k(w)$", COLOURS[1], "--"),
        ):
            above.plot(*curve(results.of(arm.name), key), style, color=colour, label=label, linewidth=1.4)
        above.set(title=arm.shown)
        for run in results.of(arm.name):
            gaps = curve([run], lambda line: line["loss"] - line["train_loss"] if "train_loss" in line else None)
            below.plot(*gaps, color=COLOURS[2], linewidth=0.9, alpha=0.8)
        for side in (-1, 1):
            below.axhline(side * bounds[arm.name], color="#666666", linestyle=":", linewidth=1.2)
        below.set(xlabel="round")
    panels[0, 0].set_ylabel("mean loss over clients")
    panels[0, 0].legend(fontsize=8)
    panels[1, 0].set_ylabel("test less training,\na line a seed")
    return picture
