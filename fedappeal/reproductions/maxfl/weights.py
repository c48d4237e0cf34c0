"""MaxFL, figure 2: the aggregation weight q_k over the gap between a client's loss and what it requires."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from fedappeal.protocol.draws import generator
from fedappeal.studies.experiment import Arm, Claim, Experiment, Quick, Results, at_least, at_most
from fedappeal.views.comparison.measures import COLOURS, DASHES, Figure, Measure, last, new_panels
from strategies.maxfl import appeal_weight

FAR = 5.0
"""A gap from which on the model sufficiently meets a requirement, or is incompatible with it: our reading of >>."""


def compute(settings: Mapping[str, Any], seed: int) -> Mapping[str, float]:
    """Return what the strategy's own weights of drawn losses and requirements come to."""
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


def _figure(results: Results) -> Figure:
    gaps = np.linspace(-10, 10, 401)
    figure, ((axes,),) = new_panels(6, 3.6)
    axes.plot(gaps, [appeal_weight(gap, 0.0) for gap in gaps], color=COLOURS[0], label="equation 4, the strategy's")
    line_8 = 1 / (1 + np.exp(-gaps))
    axes.plot(gaps, line_8 / 4, color=COLOURS[1], linestyle=DASHES[1], label="Algorithm 1, line 8 as printed, / 4")
    axes.axvspan(-10, -FAR, color="#dddddd", label=f"gaps of at least {FAR:g}")
    axes.axvspan(FAR, 10, color="#dddddd")
    axes.set(xlabel="$F_k(w) - \\rho_k$", ylabel="$q_k(w)$", xlim=(-10, 10))
    axes.legend(fontsize=8, loc="upper left")
    return figure


_ROW = "drawn losses and requirements"

EXPERIMENTS = (
    Experiment(
        name="maxfl-figure2",
        title="MaxFL: the weight of a client over its gap",
        source="MaxFL, figure 2",
        claim="A client's weight is the highest where the model does about as well as it requires; it is about 0 "
        "where the model sufficiently meets the requirement, and where it is incompatible with it.",
        settings={"draws": 1000},
        arms=(Arm(_ROW),),
        measures=(
            Measure("exceeds", "weights above that of a gap of 0 %", last("exceeds"), True, "lower", digits=1),
            Measure("falls", "steps to larger gaps in which it falls %", last("falls"), True, digits=1),
            Measure("above", f"largest weight {FAR:g} or more above the requirement", last("above"), digits=4),
            Measure("below", f"weight {FAR:g} below it", last("below"), digits=4),
        ),
        quick=Quick({"draws": 100}),
        claims=(
            Claim("the weight is the highest at a gap of 0", at_most(_ROW, "exceeds", 0.0), "", "points", True),
            Claim("it falls with the gap's size", at_least(_ROW, "falls", 100), unit="points", inclusive=True),
            Claim("it is about 0 far above the requirement (1/100)", at_most(_ROW, "above", 0.01)),
            Claim("it is about 0 far below it (1/100)", at_most(_ROW, "below", 0.01)),
        ),
        figure=_figure,
        notes=f"""\
- Weights are the strategy's own `appeal_weight`. "About 0" is below 1/100, {FAR:g} or more from the requirement.
- The picture has line 8 beside it: with it the farthest clients would count the most, against the figure.
""",
        compute=compute,
        seeds=8,
    ),
)
