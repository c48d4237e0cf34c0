"""MaxFL, figure 2: the aggregation weight q_k over the gap between a client's loss and what it requires."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from fedappeal.protocol.draws import generator
from fedappeal.studies.experiment import Results
from fedappeal.views.comparison.measures import COLOURS, DASHES, Figure, new_panels
from strategies.maxfl import appeal_weight

FAR = 5.0
"""A gap from which on the model sufficiently meets a requirement, or is incompatible with it: our reading of >>."""


def compute(settings: Mapping[str, Any], seed: int) -> Mapping[str, float]:
    """Return the strategy's own weights of drawn losses and requirements."""
    rng, draws = generator(seed, "maxfl-weights"), settings["draws"]
    rho = rng.uniform(0, 3, draws)
    losses = np.maximum(0.0, rho + rng.normal(0, 5, draws))
    q = np.array([appeal_weight(*pair) for pair in zip(losses, rho, strict=True)])
    gaps = np.abs(losses - rho)
    order = np.argsort(gaps)
    return {
        "exceeds": float((q > appeal_weight(1.0, 1.0)).mean()),
        "falls": float((np.diff(q[order]) <= 0).mean()),
        "above": float(q[losses - rho >= FAR].max()),
        "below": appeal_weight(0.0, FAR),
    }


def figure(results: Results) -> Figure:
    """Draw equation 4's weight beside line 8's.

    With line 8's the farthest clients would count the most.
    """
    gaps = np.linspace(-10, 10, 401)
    picture, ((axes,),) = new_panels(6, 3.6)
    axes.plot(gaps, [appeal_weight(gap, 0.0) for gap in gaps], color=COLOURS[0], label="equation 4, the strategy's")
    line_8 = 1 / (1 + np.exp(-gaps))
    axes.plot(gaps, line_8 / 4, color=COLOURS[1], linestyle=DASHES[1], label="Algorithm 1, line 8 as printed, / 4")
    axes.axvspan(-10, -FAR, color="#dddddd", label=f"gaps of at least {FAR:g}")
    axes.axvspan(FAR, 10, color="#dddddd")
    axes.set(xlabel="$F_k(w) - \\rho_k$", ylabel="$q_k(w)$", xlim=(-10, 10))
    axes.legend(fontsize=8, loc="upper left")
    return picture
