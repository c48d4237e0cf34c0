"""MaxFL, table 2: Byzantine clients report large losses and send noise."""

from collections.abc import Mapping

from fedappeal.reproductions.maxfl.opt_out import EMNIST, MEASURES, TABLE_1, TABLE_1_EMNIST, row
from fedappeal.reproductions.maxfl.settings import DIRICHLET, QUICK, STRATEGY
from fedappeal.studies.experiment import Arm, Claim, Experiment, Number, Numbers, Quick
from fedappeal.studies.pictures import by_seed
from fedappeal.views.comparison.measures import ACCURACY_LATE, UNSEEN_ACCURACY_LATE, Measure

Table2 = Mapping[tuple[str, float], Mapping[str, Number]]
"""By algorithm and share of Byzantine clients; without any, table 1's."""

_TABLE_2: Table2 = {
    ("MW-Fed", 0.0): TABLE_1["MW-Fed"],
    ("MW-Fed", 0.05): row((21.28, 1.79), (0.02, 0.0), (21.91, 3.81), (0.01, 0.0)),
    ("MW-Fed", 0.1): row((17.24, 2.35), (0.01, 0.0), (18.45, 2.81), (0.01, 0.0)),
    ("MaxFL", 0.0): TABLE_1["MaxFL"],
    ("MaxFL", 0.05): row((70.60, 2.76), (0.42, 0.03), (71.11, 1.47), (0.46, 0.01)),
    ("MaxFL", 0.1): row((69.42, 2.87), (0.35, 0.05), (69.75, 3.66), (0.39, 0.01)),
}
_TABLE_2_EMNIST: Table2 = {
    ("MW-Fed", 0.0): TABLE_1_EMNIST["MW-Fed"],
    ("MW-Fed", 0.05): row((22.22, 0.63), (0.008, 0.001), (22.23, 0.63), (0.003, 0.0)),
    ("MW-Fed", 0.1): row((15.83, 1.52), (0.004, 0.0), (17.03, 0.21), (0.005, 0.0)),
    ("MaxFL", 0.0): TABLE_1_EMNIST["MaxFL"],
    ("MaxFL", 0.05): row((56.10, 0.77), (0.23, 0.01), (55.10, 0.78), (0.28, 0.01)),
    ("MaxFL", 0.1): row((52.74, 0.44), (0.20, 0.01), (53.82, 0.09), (0.26, 0.02)),
}

_NOISIER = ("No client may opt out; noise ten times as large as the update", ", always, noise 10")

_READINGS: tuple[tuple[str, str, Mapping[str, object], Table2], ...] = (
    ("No client joins: the model stays (as the paper reads)", "", {}, _TABLE_2),
    ("No client joins: the next round asks all", ", ask all", {"on-empty-round": "ask-all"}, _TABLE_2),
    ("No client may opt out", ", always", {"participation": "always"}, _TABLE_2),
    ("EMNIST, read as in the first group", ", EMNIST", EMNIST, _TABLE_2_EMNIST),
)


def _arms() -> tuple[Arm, ...]:
    arms = []
    for group, suffix, settings, table in _READINGS:
        for (name, share), paper in table.items():
            chosen = {"strategy": STRATEGY[name], "byzantine-share": share, **settings}
            shared = "" if share else "maxfl-table1"
            arms.append(Arm(_name(name, share) + suffix, chosen, paper, group, shared, _name(name, share)))
    for (name, share), paper in _TABLE_2.items():
        if share:
            attack = {"byzantine-share": share, "byzantine-noise": 10.0}
            chosen = {"strategy": STRATEGY[name], "participation": "always", **attack}
            arms.append(Arm(_name(name, share) + _NOISIER[1], chosen, paper, _NOISIER[0], "", _name(name, share)))
    return tuple(arms)


def _name(name: str, share: float) -> str:
    # Without attackers it is the row of table 1, whose runs it shares.
    return f"{name}, Byz={share:g}" if share else name


def _robust(suffix: str, group: str, measure: Measure, whose: str, without: str = "") -> Claim:
    """Return the claim for a group; ``without`` is the suffix of the rows without attackers, if it is another."""

    def margin(number: Numbers) -> float:
        lost = {
            name: number(name + (without or suffix), measure.key) - number(_name(name, 0.1) + suffix, measure.key)
            for name in ("MW-Fed", "MaxFL")
        }
        return lost["MW-Fed"] - lost["MaxFL"]

    text = f"a tenth of attackers costs MaxFL less of {whose} accuracy than MW-Fed"
    return Claim(text, margin, group, "points", ours=group == _NOISIER[0])


EXPERIMENTS = (
    Experiment(
        name="maxfl-table2",
        title="MaxFL: Byzantine clients",
        source="MaxFL, table 2",
        claim="Clients that report large losses to gain weight, and send noise, cost MaxFL 1 to 5 points of "
        "accuracy: it gives little weight to clients that it cannot win. MW-Fed gives them more, and falls to "
        "about 20 %.",
        settings=DIRICHLET,
        arms=_arms(),
        measures=MEASURES,
        quick=Quick(QUICK, ("MW-Fed, Byz=0.1", "MaxFL, Byz=0.1")),
        claims=tuple(
            _robust(suffix, group, measure, whose, without)
            for group, suffix, without in (*((g, s, "") for g, s, _, _ in _READINGS), (*_NOISIER, ", always"))
            for measure, whose in ((ACCURACY_LATE, "seen clients'"), (UNSEEN_ACCURACY_LATE, "unseen clients'"))
        ),
        glances={"-accuracy": by_seed(ACCURACY_LATE.key, 2)},
        notes="""\
- An attacker reports from ten times its loss, joins whenever it is asked, and adds Gaussian noise as large as its
  update. The paper does not say how large either is: one group has ten times the noise, compared with the rows
  without attackers where no client may opt out. Rows without attackers are table 1's.
- Accuracy and GM-Appeal are over all clients, attackers included: they answer evaluation honestly.
- Three seeds decide nothing here.
""",
    ),
)
