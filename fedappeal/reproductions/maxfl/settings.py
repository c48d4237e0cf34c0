"""Settings of MaxFL's experiments: appendix D.1's, its grid, the baselines, and the readings of its tables."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from fedappeal.settings.config import Scalar
from fedappeal.studies.experiment import Arm, Claim, Contrast, Number
from fedappeal.studies.pictures import Panel
from fedappeal.views.comparison import measures

FMNIST: Mapping[str, Any] = {
    "task": "fmnist",
    "model": "mlp",
    "clients": 100,
    "unseen-clients": 100,
    "clients-per-round": 5,
    "rounds": 200,
    "train-share": 0.6,
    "min-examples": 50,
    "flip-share": 0.3,
    "requirement": "solo",
    "solo.steps": 100,
    "batch-size": 32,
    "local-steps": 30,
    "evaluate-every": 5,
    "evaluate-train": False,
}
"""Fashion-MNIST as in section 5 and appendix D.1. Rates: `rate`."""


def rate(value: float) -> Mapping[str, Any]:
    """Return a learning rate: of training and, as in appendix D.1, of the solo steps behind rho_k."""
    return {"learning-rate": value, "solo.learning-rate": value}


CLUSTERS: Mapping[str, Any] = {
    **FMNIST,
    **rate(0.005),
    "partition": "clusters",
    "clusters": 5,
    "cluster-alpha": 0.0,
    "flip-on": "both",
    "participation": "always",
}
"""Figure 3, tables 3 to 7: five clusters of two labels, even inside a cluster, and no opt-out.

What a client requires moves with the rate: at 0.1 no global model gets to what a client reaches alone, at 0.001 every
global model does.
"""

DIRICHLET: Mapping[str, Any] = {
    **FMNIST,
    **rate(0.1),
    "partition": "dirichlet-clusters",
    "clusters": 5,
    "dirichlet-alpha": 0.5,
    "participation": "appeal",
    "mandatory-rounds": 10,
    "on-empty-round": "keep",
    "flip-on": "both",
}
"""Tables 1 and 2: five clusters whose labels are Dirichlet draws, and clients may opt out from round 10 on."""

QUICK: Mapping[str, Any] = {
    "clients": 20,
    "unseen-clients": 10,
    "rounds": 14,
    "local-steps": 5,
    "solo.steps": 30,
    "evaluate-every": 2,
}

STRATEGY: Mapping[str, str] = {
    "FedAvg": "fedavg",
    "FedProx": "fedprox",
    "Scaffold": "scaffold",
    "PerFedAvg": "perfedavg",
    "qFFL": "qfedavg",
    "MW-Fed": "mwfed",
    "MaxFL": "maxfl",
}
"""The paper's names of the algorithms, in the order of its tables."""

GRID: Mapping[str, tuple[Scalar, ...]] = {
    "learning-rate": (0.1, 0.05, 0.01, 0.005, 0.001),
    "batch-size": (32, 64, 128),
    "local-steps": (10, 30, 50),
}
"""Appendix D.1's grid. The rate of the solo steps stays, so that rates and steps are compared against the same rho_k;
their batches are the run's, so that rho_k does move with the batch size."""


@measures.reading
def correlation(lines: measures.Lines, one: str, other: str) -> float | None:
    """Return the correlation of two columns over the rounds; None where one never changes."""
    sides = [[line[key] for line in lines if other in line] for key in (one, other)]
    return None if min(len(set(side)) for side in sides) < 2 else statistics.correlation(*sides)


@dataclass(frozen=True)
class Reading:
    """One way to read what the paper leaves open.

    Attributes:
        group: its name, above its rows.
        suffix: what its rows' names end with.
        settings: what it means.
        against: suffix of the rows with which MaxFL's is compared, where it is of MaxFL alone; None: its own rows.
    """

    group: str
    suffix: str
    settings: Mapping[str, Any]
    against: str | None = None


READINGS = (
    Reading("30 % of the clients flipped, train and test labels; rate 0.005", "", {}),
    Reading("30 % flipped, train labels only; rate 0.005", ", train flipped", {"flip-on": "train"}),
    Reading("No client flipped; rate 0.005", ", no flips", {"flip-share": 0.0}),
    Reading("30 % flipped, train and test labels; rate 0.1", ", rate 0.1", rate(0.1)),
)
"""Of `CLUSTERS`: whose labels are flipped and where, and the rate of training and of the solo steps."""

DROPOUT_ON = Reading(
    "30 % flipped, train and test labels; rate 0.005; losses measured with dropout on",
    ", dropout on",
    {"loss-mode": "training"},
)
"""The first of `READINGS`, with F_k and rho_k measured in training mode, for table 3 and figure 3."""

SENT140 = Reading(
    "Sent140, 30 % flipped, train and test labels; rate 0.005",
    ", Sent140",
    {
        "task": "sent140",
        "model": "auto",
        "partition": "natural",
        "clients": 308,
        "unseen-clients": 619,
        "clients-per-round": 10,
    },
)
"""The other data set of tables 3, 4, 6 and 7, with section 5's numbers of clients; it needs its files."""


def over(measure: measures.Measure, reading: Reading, other: str, lives: float | None = None) -> Claim:
    """Return the claim that MaxFL is ahead of another row by a measure in a reading.

    Args:
        measure: what is compared.
        reading: where.
        other: the row that it is ahead of.
        lives: the number from which on a run lives, where runs that live are counted.
    """
    others = reading.suffix if reading.against is None else reading.against
    sides = ("MaxFL" + reading.suffix, measure.key), (other + others, measure.key)
    unit = "points" if measure.percent else ""
    name = measure.title.removesuffix(f", last {measures.LATE} rounds") if lives is None else "runs that live"
    text = f"MaxFL over {other}: {name}"
    return Claim(text, Contrast(sides[0], sides[1], event=lives), reading.group, unit)


Table = Mapping[str, Mapping[str, Number]]
"""The paper's numbers by row and measure."""


Readings = Sequence[tuple[Reading, Table]]
"""A table's rows, with the paper's numbers, in each reading."""


def printed(*keys: str) -> Callable[..., Mapping[str, Number]]:
    """Return what puts the numbers of a row under the keys of their measures; a row may end early."""
    return lambda *numbers: dict(zip(keys, numbers, strict=False))


def rows(
    readings: Readings,
    by_row: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
    runs_in: Mapping[str, str] = MappingProxyType({}),
) -> tuple[Arm, ...]:
    """Return a table's rows, reading after reading.

    Args:
        readings: the rows, with the paper's numbers.
        by_row: settings of rows that are no algorithm of `STRATEGY`.
        runs_in: see `Arm`; by row.
    """
    return tuple(
        Arm(
            name + reading.suffix,
            {**(by_row.get(name) or {"strategy": STRATEGY[name]}), **reading.settings},
            numbers,
            reading.group,
            runs_in.get(name, ""),
            label=name,
        )
        for reading, table in readings
        for name, numbers in table.items()
        if reading.against is None or name == "MaxFL"
    )


PREFERRED_TOO: tuple[Panel, ...] = (
    ("gm_appeal", "GM-Appeal", False),
    ("preferred_accuracy", "preferred-model accuracy %", True),
)
JUDGED = (measures.GM_APPEAL, measures.GM_APPEAL_LATE, measures.PREFERRED, measures.PREFERRED_LATE)
UNSEEN_JUDGED = (
    measures.UNSEEN_GM_APPEAL,
    measures.UNSEEN_GM_APPEAL_LATE,
    measures.UNSEEN_PREFERRED,
    measures.UNSEEN_PREFERRED_LATE,
)
"""Columns: GM-Appeal and preferred-model accuracy, at the end and over the last rounds."""

ORDER = ("FedAvg", "MaxFL", "FedProx", "Scaffold", "PerFedAvg", "qFFL", "MW-Fed")
"""The algorithms in the order of their colours in all figures."""


def firsts(readings: Readings, compared: Sequence[measures.Measure]) -> tuple[Claim, ...]:
    """Return the claims that MaxFL is ahead of each other row in each reading, where the paper prints no other."""
    return tuple(
        over(measure, reading, name)
        for reading, table in readings
        for measure in compared
        for name in table
        if name != "MaxFL" and _claimed(table, name, measure)
    )


def _claimed(table: Table, name: str, measure: measures.Measure) -> bool:
    """Return whether the paper prints MaxFL's number as higher, or no number of the table."""
    numbers = {row: Arm(row, paper=paper).printed(measure) for row, paper in table.items()}
    values = {row: value for row, value in numbers.items() if value is not None}
    return not values or (name in values and values["MaxFL"] > values[name])
