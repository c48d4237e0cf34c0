"""MaxFL, table 3 and figure 3: five clusters of two labels, no client opts out."""

import numpy as np

from fedappeal.reproductions.maxfl import settings as maxfl
from fedappeal.studies.experiment import Claim, Experiment, Quick, at_least
from fedappeal.studies.pictures import curves, forest
from fedappeal.views.comparison.measures import Lines, Measure

_row = maxfl.printed("unseen-gm-appeal", "unseen-preferred")

_TABLE_3: maxfl.Table = {
    "FedAvg": _row((0.08, 0.01), (98.53, 0.13)),
    "FedProx": _row((0.07, 0.01), (98.43, 0.21)),
    "Scaffold": _row((0.02, 0.01), (98.26, 0.20)),
    "MW-Fed": _row((0.05, 0.04), (98.32, 0.13)),
    "MaxFL": _row((0.55, 0.0), (98.83, 0.06)),
}
"""Fashion-MNIST's columns."""

_TABLE_3_SENT140: maxfl.Table = {
    "FedAvg": _row((0.37, 0.07), (57.05, 1.44)),
    "FedProx": _row((0.37, 0.07), (57.07, 1.42)),
    "Scaffold": _row((0.03, 0.05), (51.59, 0.11)),
    "MW-Fed": _row((0.17, 0.03), (55.57, 1.28)),
    "MaxFL": _row((0.43, 0.05), (57.16, 1.35)),
}

_READINGS = (
    *((reading, _TABLE_3) for reading in (*maxfl.READINGS, maxfl.DROPOUT_ON)),
    (maxfl.SENT140, _TABLE_3_SENT140),
)
_SEEN: maxfl.Readings = tuple((reading, {name: {} for name in table}) for reading, table in _READINGS)
"""Figure 3's rows: the paper prints no numbers for them."""

_NOTES = """\
- Figure 3 shows seen clients, table 3 unseen ones; both read the same runs.
- The paper says that 30 % of the clients have flipped labels, not which and where: each reading is a group. A flip
  turns label y into 9 - y; a preferred-model accuracy near 99 % is that of a task of two labels.
- One rate for all rows of a group and, as in appendix D.1, for the solo steps behind rho_k: at 0.1 no global model
  reaches what a client requires, at 0.001 FedAvg satisfies every client too. The paper tuned each row and does not
  print its rates (`--grid learning-rate` tunes).
- F_k and rho_k are measured without dropout, except in the group that says so (`loss-mode = training`).
- FedProx's mu, 0.01, leaves it as FedAvg; the paper names none.
"""


def _correlation(lines: Lines) -> float | None:
    """Correlation over the rounds of GM-Appeal and preferred-model accuracy; None where one of them never changes."""
    pairs = [(line["gm_appeal"], line["preferred_accuracy"]) for line in lines if "preferred_accuracy" in line]
    if len({appeal for appeal, _ in pairs}) < 2 or len({accuracy for _, accuracy in pairs}) < 2:
        return None
    return float(np.corrcoef(np.array(pairs).T)[0, 1])


_TOGETHER = Measure("together", "correlation of the two over the rounds", _correlation)


_QUICK = Quick(maxfl.QUICK, ("FedAvg", "MW-Fed", "MaxFL"))

EXPERIMENTS = (
    Experiment(
        name="maxfl-table3",
        title="MaxFL: unseen clients without opt-out",
        source="MaxFL, table 3",
        claim="The global model appeals to far more unseen clients than the baselines' (0.55 against at most 0.08), "
        "and the accuracy of the models they prefer is the same or higher.",
        settings=maxfl.CLUSTERS,
        arms=maxfl.rows(_READINGS),
        measures=maxfl.UNSEEN_JUDGED,
        quick=_QUICK,
        claims=maxfl.firsts(_READINGS, maxfl.UNSEEN_JUDGED[1::2]),
        glances={"-gaps": forest},
        notes=_NOTES,
        grid=maxfl.GRID,
        criterion=maxfl.UNSEEN_JUDGED[-1].key,
    ),
    Experiment(
        name="maxfl-figure3",
        title="MaxFL: seen clients without opt-out",
        source="MaxFL, figure 3",
        claim="GM-Appeal and the accuracy of the models that clients prefer rise together over the rounds, and end "
        "highest for MaxFL.",
        settings=maxfl.CLUSTERS,
        arms=maxfl.rows(_SEEN, runs_in=dict.fromkeys(_TABLE_3, "maxfl-table3")),
        measures=(*maxfl.JUDGED, _TOGETHER),
        quick=_QUICK,
        claims=(
            *maxfl.firsts(_SEEN, maxfl.JUDGED[1::2]),
            *(
                Claim(
                    "MaxFL's GM-Appeal and preferred-model accuracy go together (correlation above 0)",
                    at_least("MaxFL" + reading.suffix, _TOGETHER.key, 0.0),
                    reading.group,
                    ours=True,
                )
                for reading, _ in _SEEN
            ),
        ),
        figure=curves(maxfl.PREFERRED_TOO, maxfl.ORDER),
        glances={"-gaps": forest},
        notes=_NOTES,
    ),
)
