"""MaxFL, tables 3 to 7 and figure 3: five clusters of two labels, no client opts out.

In tables 4 and 6 clients tune the model for five local steps before they judge it; in table 5 a client trains alone
for 50, 100 or 150 steps. Table 7 is of a fair objective, q-FFL, that appeals to no client.
"""

from dataclasses import replace

from fedappeal.reproductions.maxfl import settings as maxfl
from fedappeal.studies.experiment import Arm, Claim, Experiment, Numbers, Quick, at_least
from fedappeal.studies.pictures import curves, forest
from fedappeal.views.comparison.measures import ACCURACY_LATE, LATE, Measure, best, late

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


_TOGETHER = Measure(
    "together", "correlation of the two over the rounds", maxfl.correlation("gm_appeal", "preferred_accuracy")
)
_RISE = "MaxFL's GM-Appeal and preferred-model accuracy go together (correlation above 0)"


_QUICK = Quick(maxfl.QUICK, ("FedAvg", "MW-Fed", "MaxFL"))

_row_4 = maxfl.printed("gm-appeal", "unseen-gm-appeal", "preferred", "unseen-preferred")

_TABLES_4_AND_6: maxfl.Table = {
    "FedAvg": _row_4((0.38, 0.06), (0.39, 0.06), (99.37, 0.24), (99.50, 0.02)),
    "FedProx": _row_4((0.40, 0.07), (0.41, 0.07), (99.35, 0.23), (99.55, 0.09)),
    "Scaffold": _row_4((0.02, 0.02), (0.03, 0.02)),
    "PerFedAvg": _row_4((0.45, 0.05), (0.46, 0.06), (99.20, 0.25), (98.98, 0.55)),
    "MW-Fed": _row_4((0.28, 0.07), (0.39, 0.04), (99.27, 0.39), (99.47, 0.08)),
    "MaxFL": _row_4((0.55, 0.01), (0.56, 0.01), (99.40, 0.30), (99.50, 0.02)),
}
"""Fashion-MNIST's columns; table 6 has no Scaffold."""

_TABLE_4_SENT140: maxfl.Table = {
    "FedAvg": _row_4((0.25, 0.09), (0.42, 0.06), (55.71, 0.46), (58.79, 0.67)),
    "FedProx": _row_4((0.26, 0.09), (0.43, 0.12), (55.75, 0.80), (58.82, 0.72)),
    "Scaffold": _row_4((0.16, 0.22), (0.07, 0.01)),
    "PerFedAvg": _row_4((0.24, 0.10), (0.47, 0.06), (55.74, 0.80), (58.82, 0.72)),
    "MW-Fed": _row_4((0.08, 0.01), (0.20, 0.01), (55.06, 0.38), (57.36, 0.71)),
    "MaxFL": _row_4((0.36, 0.05), (0.55, 0.01), (55.82, 0.82), (58.88, 0.77)),
}

_READINGS_4 = (*((reading, _TABLES_4_AND_6) for reading in maxfl.READINGS), (maxfl.SENT140, _TABLE_4_SENT140))

_row_5 = maxfl.printed("gm-appeal", "preferred")

_TABLE_5: dict[int, maxfl.Table] = {
    50: {
        "FedAvg": _row_5((0.01, 0.01), (98.56, 0.08)),
        "FedProx": _row_5((0.01, 0.0), (98.56, 1.15)),
        "MaxFL": _row_5((0.55, 0.0), (98.64, 1.03)),
    },
    100: {
        "FedAvg": _row_5((0.01, 0.0), (98.72, 1.02)),
        "FedProx": _row_5((0.01, 0.0), (98.72, 1.08)),
        "MaxFL": _row_5((0.55, 0.0), (98.77, 1.01)),
    },
    150: {
        "FedAvg": _row_5((0.01, 0.0), (98.75, 1.28)),
        "FedProx": _row_5((0.01, 0.01), (98.75, 1.05)),
        "MaxFL": _row_5((0.55, 0.0), (98.77, 1.01)),
    },
}
"""By the number of steps."""


def _reading(steps: int) -> maxfl.Reading:
    # The rows of 100 steps are those of table 3, whose runs they share.
    suffix = "" if steps == 100 else f", {steps} steps"
    return maxfl.Reading(f"{steps} steps alone", suffix, {"solo.steps": steps})


_READINGS_5 = tuple((_reading(steps), table) for steps, table in _TABLE_5.items())


def _steady(name: str) -> Claim:
    def margin(number: Numbers) -> float:
        appeals = [number(name + reading.suffix, maxfl.JUDGED[1].key) for reading, _ in _READINGS_5]
        return 0.05 - (max(appeals) - min(appeals))

    text = f"{name}'s GM-Appeal: at most 0.05 apart from {min(_TABLE_5)} to {max(_TABLE_5)} steps"
    return Claim(text, margin, inclusive=True, ours=True)


_TABLE_7: maxfl.Table = {
    "q-FFL (q = 1)": _row_5((0.03, 0.01), (99.24, 0.05)),
    "q-FFL (q = 10)": _row_5((0.0, 0.0), (98.90, 0.01)),
    "MaxFL": _row_5((0.55, 0.0), (99.29, 0.03)),
}
"""Fashion-MNIST's columns."""

_TABLE_7_SENT140: maxfl.Table = {
    "q-FFL (q = 1)": _row_5((0.09, 0.06), (53.10, 2.63)),
    "q-FFL (q = 10)": _row_5((0.09, 0.0), (52.71, 1.40)),
    "MaxFL": _row_5((0.41, 0.07), (53.93, 1.87)),
}

_READINGS_7 = (*((reading, _TABLE_7) for reading in maxfl.READINGS), (maxfl.SENT140, _TABLE_7_SENT140))

_QFFL = {
    "q-FFL (q = 1)": {"strategy": "qfedavg", "qfedavg.q": 1.0},
    "q-FFL (q = 10)": {"strategy": "qfedavg", "qfedavg.q": 10.0},
}

_LATE = f"last {LATE} rounds"
_HIGHEST = Measure("highest", "highest GM-Appeal of a round", best("gm_appeal"))
_ACCURACY = replace(ACCURACY_LATE, beside="")
_LOSS = Measure("loss", f"mean test loss, {_LATE}", late("loss"), better="lower")
_LOWEST = Measure("lowest", f"worst decile's accuracy %, {_LATE}", late("worst_decile_accuracy"), percent=True)


def _tuned(name: str, rate: float, steps: int) -> Arm:
    """Return a row of q-FFL at a rate and local steps of its own; the solo steps keep their rate."""
    row_name = f"{name}, own rate {rate:g}, {steps} local step{'s' * (steps > 1)}"
    settings = {**_QFFL[name], "learning-rate": rate, "local-steps": steps}
    return Arm(row_name, settings, _TABLE_7[name], maxfl.READINGS[0].group)


_TUNED = (
    _tuned("q-FFL (q = 1)", 0.1, 10),
    _tuned("q-FFL (q = 10)", 0.1, 10),
    _tuned("q-FFL (q = 10)", 1.0, 1),
)


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
                Claim(_RISE, at_least("MaxFL" + reading.suffix, _TOGETHER.key, 0.0), reading.group, ours=True)
                for reading, _ in _SEEN
            ),
        ),
        figure=curves(maxfl.PREFERRED_TOO, maxfl.ORDER),
        glances={"-gaps": forest},
        notes=_NOTES,
    ),
    Experiment(
        name="maxfl-table4",
        title="MaxFL: local tuning before the model is judged",
        source="MaxFL, tables 4 and 6",
        claim="Where each client tunes the global model for 5 local steps before it judges it, MaxFL's appeals "
        "to more clients than that of any baseline (0.55 against at most 0.45), PerFedAvg's included.",
        settings={**maxfl.CLUSTERS, "tuning-steps": 5},
        arms=maxfl.rows(_READINGS_4),
        measures=(*maxfl.JUDGED[:2], *maxfl.UNSEEN_JUDGED[:2], *maxfl.JUDGED[2:], *maxfl.UNSEEN_JUDGED[2:]),
        quick=Quick(maxfl.QUICK, ("FedAvg", "PerFedAvg", "MaxFL")),
        claims=maxfl.firsts(_READINGS_4, (maxfl.JUDGED[1], maxfl.UNSEEN_JUDGED[1], maxfl.JUDGED[3])),
        glances={"-gaps": forest},
        notes="""\
- All rows are judged after 5 steps of the run's local SGD; MaxFL also computes its weights so, PerFedAvg too. The
  preferred model is the tuned global one where it appeals, else the client's own.
- Flips and rates are read in four ways: the groups of rows.
""",
        grid=maxfl.GRID,
        criterion=maxfl.JUDGED[-1].key,
    ),
    Experiment(
        name="maxfl-table5",
        title="MaxFL: how long a client trains alone",
        source="MaxFL, table 5",
        claim="However many steps a client trains alone for what it requires, GM-Appeal hardly changes, and "
        "MaxFL's is far the highest (0.55 against 0.01).",
        settings=maxfl.CLUSTERS,
        arms=(
            *maxfl.rows(_READINGS_5[:1]),
            *maxfl.rows(_READINGS_5[1:2], runs_in=dict.fromkeys(_TABLE_5[100], "maxfl-table3")),
            *maxfl.rows(_READINGS_5[2:]),
        ),
        measures=maxfl.JUDGED,
        quick=Quick({**maxfl.QUICK, "rounds": 10}, ("FedAvg, 50 steps", "MaxFL, 50 steps", "MaxFL")),
        claims=(*maxfl.firsts(_READINGS_5, maxfl.JUDGED[1::2]), *map(_steady, _TABLE_5[100])),
        glances={"-gaps": forest},
        notes="""\
- Read as table 3's setting: five clusters of two labels, 30 % of the clients flipped in train and test labels. The
  paper says only that it is Fashion-MNIST for 200 rounds.
- With MaxFL the requirement also decides the weights, so its runs differ; the baselines' models do not.
""",
    ),
    Experiment(
        name="maxfl-table7",
        title="MaxFL: against fair objectives",
        source="MaxFL, table 7",
        claim="q-FFL, which evens out the clients' losses, appeals to almost no client (at most 0.03 against "
        "0.55), and the models that clients prefer are less accurate.",
        settings=maxfl.CLUSTERS,
        arms=(*maxfl.rows(_READINGS_7, _QFFL, {"MaxFL": "maxfl-table3"}), *_TUNED),
        measures=(*maxfl.JUDGED, _HIGHEST, _ACCURACY, _LOSS, _LOWEST),
        quick=Quick(maxfl.QUICK, ("q-FFL (q = 1)", "q-FFL (q = 10)", "MaxFL")),
        claims=(
            *maxfl.firsts(_READINGS_7, maxfl.JUDGED[1::2]),
            *(
                replace(maxfl.over(measure, maxfl.READINGS[0], arm.name), ours=True)
                for measure in maxfl.JUDGED[1::2]
                for arm in _TUNED
            ),
        ),
        glances={"-gaps": forest},
        notes="""\
- q-FFL is q-FedAvg, with 1 / the local learning rate as its Lipschitz estimate. MaxFL's rows and the setting are
  table 3's: appendix D.1 does not name table 7's.
- q-FedAvg's step shrinks with q and the local steps: q = 10 stays near its first model, whose loss is that of
  guessing. So rows with rates of their own: the best with seed 0 of the paper's rates and steps, and of 0.1, 0.3
  and 1 with 1 and 3 steps for q = 10. MaxFL's row is not tuned.
- The paper's text has fair objectives below 0.01 for all data sets, its table up to 0.09.
""",
    ),
)
