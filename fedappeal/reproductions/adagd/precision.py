"""ADA-GD, figure 3: what defections cost under FedAvg, by precision, heterogeneity and local steps."""

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedappeal.reproductions.adagd import settings as agents
from fedappeal.reproductions.adagd.defections import CLASSES, NOTES, SETTINGS, figure_3, local
from fedappeal.studies.experiment import Arm, Claim, Experiment, Numbers, Quick, Results

KEPT = (50, 90, 100)
STEPS = (1, 5, 20)
PRECISIONS = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
"""epsilon; with 0 no agent ever leaves."""

DATA: Mapping[str, Mapping[str, Any]] = {"": {}, "CIFAR-10": {"data": "cifar10", "model": "mlp"}}
"""Data set as rows name it (empty: Fashion-MNIST) -> what differs with it; the network is `adagd-figure2`'s."""


def cell(kept: int, steps: int, precision: float, data: str = "") -> str:
    """Return the name of one setting's row."""
    return named(f"q {kept / 100:g}, K {steps}, epsilon {precision:g}", data)


def named(text: str, data: str) -> str:
    """Return a heading with the data set before it, where it is not Fashion-MNIST."""
    return f"{data}, {text}" if data else text


def _settings(kept: int, steps: int, precision: float, data: str = "fmnist", **more: Any) -> dict[str, Any]:
    leaves = {"defect.leave-below": precision} if precision else {"participation": "always"}
    return {**agents.kept_share(CLASSES, kept / 100, 1000, data), **local(steps), **leaves, **more}


def _sweep() -> tuple[Arm, ...]:
    return tuple(
        Arm(
            cell(kept, steps, precision, data),
            _settings(kept, steps, precision, **more),
            {},
            named(f"q = {kept / 100:g}, K = {steps}", data),
            label=f"epsilon {precision:g}",
        )
        for data, more in DATA.items()
        for kept in KEPT
        for steps in STEPS
        for precision in PRECISIONS
    )


_ACCURACIES = {
    "accuracy": "average accuracy",
    "population": "population accuracy",
    "lowest": "lowest agent's accuracy",
    "highest": "highest agent's accuracy",
}


def _decline(key: str, kept: int, data: str) -> Claim:
    def margin(number: Numbers) -> float:
        return min(number(cell(kept, k, 0.0, data), key) - number(cell(kept, k, 1.0, data), key) for k in STEPS)

    text = f"the {_ACCURACIES[key]} is lower with epsilon = 1 than where no agent leaves, for each K"
    return Claim(text, margin, named(f"q = {kept / 100:g}", data), "points")


def _monotone(key: str, data: str) -> Claim:
    def margin(number: Numbers) -> float:
        falls = [
            number(cell(kept, steps, after, data), key) <= number(cell(kept, steps, before, data), key) + 1
            for kept in KEPT
            for steps in STEPS
            for before, after in itertools.pairwise(PRECISIONS)
        ]
        return sum(falls) - 0.9 * len(falls)

    text = f"the {_ACCURACIES[key]} falls, or stays within a point, in nine of ten steps of epsilon"
    return Claim(text, margin, named("all q", data), "steps", inclusive=True, ours=True)


def _more_heterogeneous(key: str, data: str) -> Claim:
    def margin(number: Numbers) -> float:
        sums = [sum(number(cell(kept, STEPS[-1], p, data), key) for p in PRECISIONS[1:]) for kept in KEPT]
        return min(less - more for less, more in itertools.pairwise(sums)) / len(PRECISIONS[1:])

    text = f"with more heterogeneity the {_ACCURACIES[key]} is lower, over all epsilon (K = {STEPS[-1]})"
    return Claim(text, margin, named("all q", data), "points")


def _wider(data: str) -> Claim:
    def apart(number: Numbers, kept: int, precision: float) -> float:
        at = cell(kept, STEPS[-1], precision, data)
        return number(at, "highest") - number(at, "lowest")

    def margin(number: Numbers) -> float:
        spreads = [sum(apart(number, kept, p) for p in PRECISIONS[1:]) for kept in KEPT]
        return min(more - less for less, more in itertools.pairwise(spreads)) / len(PRECISIONS[1:])

    text = f"with more heterogeneity the agents lie further apart, over all epsilon (K = {STEPS[-1]})"
    return Claim(text, margin, named("all q", data), "points")


def _claims() -> tuple[Claim, ...]:
    claims: list[Claim] = []
    for data in DATA:
        claims += [_decline(key, kept, data) for kept in KEPT for key in ("accuracy", "population")]
        claims += [check(key, data) for check in (_monotone, _more_heterogeneous) for key in _ACCURACIES]
        claims.append(_wider(data))
    return tuple(claims)


def _figure(results: Results, stem: Path) -> None:
    columns = {
        named(f"q = {kept / 100:g}", data): {k: {p: cell(kept, k, p, data) for p in PRECISIONS} for k in STEPS}
        for data in DATA
        for kept in KEPT
    }
    figure_3(results, stem, columns)


EXPERIMENTS = (
    Experiment(
        name="adagd-figure3",
        title="Defections under FedAvg by precision, heterogeneity and local steps",
        source="ADA-GD, figures 3a, 3b and 3c (Fashion-MNIST beside CIFAR-10)",
        claim="As epsilon grows agents leave more readily, and average, population, lowest and highest accuracy "
        "almost always fall; with more heterogeneity all fall, and the spread between agents grows.",
        settings={**SETTINGS, "rounds": 300, "evaluate-every": 0},
        arms=_sweep(),
        measures=(agents.AGENTS_LOST, agents.END_ACCURACY, agents.POPULATION, agents.LOWEST, agents.HIGHEST),
        quick=Quick({"rounds": 30}, tuple(cell(90, k, p) for k in STEPS[:2] for p in (0.0, 0.6, 1.0))),
        claims=_claims(),
        figure=_figure,
        notes=NOTES
        + """\
- The paper's plots do not name their q; ours are 0.5, 0.9 and 1. Its K goes to 100, ours to 20; it tunes eta for
  each q and K, here it is 0.1 throughout, for 300 rounds.
""",
    ),
)
