"""What is read off ADA-GD's runs, and what its claims say: figures 2, 3 and 9 (figure 7: test_retention)."""

import itertools
import json
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from fedappeal.reproductions import load_experiment
from fedappeal.reproductions.adagd.precision import PRECISIONS, SWEEPS
from fedappeal.reproductions.adagd.readings import defections, population
from fedappeal.settings.config import RunConfig
from fedappeal.studies.experiment import Experiment
from fedappeal.views.comparison.measures import recorded
from server.build import check_settings
from tests.studies.small import holds

FIGURE_2, FIGURE_3, FIGURE_8, FIGURE_9, FIGURE_7A, FIGURE_7B = EXPERIMENTS = tuple(
    load_experiment(f"adagd-figure{number}") for number in ("2", "3", "8", "9", "7a", "7b")
)
BEFORE, GONE_AT_PEAK, WORSE_AFTER, AGENTS_LOST, FIRST_DEFECTION, PEAK_ACCURACY, POPULATION = map(
    FIGURE_2.measure,
    ("before", "gone-at-peak", "worse-after", "agents-lost", "first-defection", "peak", "population"),
)
BELOW_PEAK = FIGURE_7A.measure("below-peak")
DOCS = Path(__file__).parents[3] / "docs" / "reproductions"

LINES: list[dict[str, Any]] = [
    {"round": 1, "left": 0, "accuracy": 0.5, "unseen_accuracy": 0.25},
    {"round": 2, "left": 2, "accuracy": 0.75, "unseen_accuracy": 0.5},
    {"round": 3, "left": 0},
    {"round": 4, "left": 1, "accuracy": 0.25, "unseen_accuracy": 0.75},
]


def run_of(accuracies: list[float], left: dict[int, int], agents: int) -> list[dict[str, Any]]:
    """Return the lines of a run that is evaluated in every round."""
    lines = []
    for at, accuracy in enumerate(accuracies, 1):
        agents -= left.get(at, 0)
        lines.append({"round": at, "left": left.get(at, 0), "joined": agents, "accuracy": accuracy})
    return lines


def test_who_left_by_hand() -> None:
    assert defections(LINES) == [2, 2, 4]
    assert AGENTS_LOST.number(LINES) == 3
    assert FIRST_DEFECTION.number(LINES) == 2
    assert FIRST_DEFECTION.number(LINES[:1]) is None
    assert PEAK_ACCURACY.number(LINES) == 75
    assert BELOW_PEAK.number(LINES) == 50


def test_accuracy_before_the_first_leaves_by_hand() -> None:
    """An agent that leaves in round 2 leaves on receiving the model of round 1."""
    assert BEFORE.number(LINES) == 50
    assert BEFORE.number(LINES[2:]) is None  # nothing was recorded before round 4
    assert BEFORE.number([LINES[0], LINES[2], LINES[3]]) == 50  # recorded in round 1, first left in round 4
    assert BEFORE.number(LINES[:1]) is None
    assert recorded(LINES, "accuracy") == {1: 0.5, 2: 0.75, 4: 0.25}


def test_agents_gone_at_the_peak_by_hand() -> None:
    assert GONE_AT_PEAK.number(LINES) == 2
    assert GONE_AT_PEAK.number(run_of([0.5, 0.6, 0.6, 0.4], {3: 1}, 2)) == 0  # the first of two equal ones
    assert GONE_AT_PEAK.number([LINES[2]]) is None


def test_harm_after_defections_by_hand() -> None:
    """Agents leave in rounds 2 (on 0.5), 4 (on 0.6) and 9 (the last one, after which no agent trains)."""
    accuracies = [0.5, 0.4, 0.6, 0.7, 0.65, 0.45, 0.55, 0.6, 0.3]
    lines = run_of(accuracies, {2: 1, 4: 1, 9: 1}, 3)
    # Round 2: 0.5 of round 1 against 0.45 of round 6. Round 4: 0.6 of round 3 against 0.6 of round 8.
    assert WORSE_AFTER.number(lines) == 50
    lines[7]["accuracy"] = 0.59
    assert WORSE_AFTER.number(lines) == 100
    lines[6]["accuracy"] = 0.65
    assert WORSE_AFTER.number(lines[:7]) == 50  # the run's last, 0.65, stands for round 8
    assert WORSE_AFTER.number(run_of([0.5, 0.4], {}, 2)) is None
    assert WORSE_AFTER.number(run_of([0.5, 0.4], {2: 2}, 2)) is None


def test_the_population_by_hand() -> None:
    """As many agents are unseen as seen, all with equally many examples: the mean of both accuracies."""
    assert [population(line) for line in LINES] == [0.375, 0.625, None, 0.5]
    assert POPULATION.number(LINES) == 50
    diverged = {"round": 5, "accuracy": None, "loss": None, "reported": 1}
    assert POPULATION.number([*LINES, diverged]) == 50, "later models are not asked for"
    for experiment in (FIGURE_2, FIGURE_3, FIGURE_8, FIGURE_9):
        assert experiment.settings["clients"] == experiment.settings["unseen-clients"]


@pytest.mark.parametrize("experiment", [FIGURE_3, FIGURE_8], ids=lambda e: e.name)
def test_local_steps_share_eta(experiment: Experiment) -> None:
    """K local steps of eta / K; figure 3's eta is 0.1."""
    for arm in experiment.arms:
        eta = float(arm.name.rpartition("-eta-")[2]) if "-eta-" in arm.name else 0.1
        assert arm.settings["learning-rate"] * arm.settings["local-steps"] == pytest.approx(eta)
        assert f"-k-{arm.settings['local-steps']}-" in arm.name


def test_figure_2s_claims_by_hand() -> None:
    """Accuracy is 75 before any agent left, 80 at its best and 70 at the end; the population's is 60, 66 and 60."""
    numbers = {
        "before": 75.0,
        "peak": 80.0,
        "accuracy": 70.0,
        "population-before": 60.0,
        "population-peak": 66.0,
        "population": 60.0,
        "worse-after": 90.0,
        "gone-at-peak": 1.0,
    }
    claims = [claim for claim in FIGURE_2.claims if claim.group == "epsilon = 0.4"]

    def held() -> list[bool]:
        return [holds(claim, lambda _, key: numbers[key]) for claim in claims]

    assert held() == [False, False, True, True, False, True]
    numbers |= {"worse-after": 100.0, "gone-at-peak": 0.0, "population": 55.0}
    assert held() == [True] * 6
    numbers["accuracy"] = 75.1
    assert held() == [True, True, False, False, True, True]


def test_figure_2s_paper_numbers_stand_where_the_paper_has_them() -> None:
    """46 % is "the peak prior to any defections": the row before the first leaves, not the highest at any time."""
    assert [arm.paper for arm in FIGURE_2.arms if arm.paper] == [{"before": 46, "accuracy": 22}]


@pytest.mark.parametrize(("name", "experiment"), [("fmnist", FIGURE_3), ("cifar10", FIGURE_3), ("tuned", FIGURE_9)])
def test_a_sweeps_claims_by_hand(name: str, experiment: Experiment) -> None:
    """All accuracies fall by 10 with each step of epsilon and of q; agents lie 20, 22 and 24 points apart."""
    sweep = SWEEPS[name]
    cells = {
        sweep.cell(kept, k, precision): {"accuracy": 90 - 10 * i - 10 * j, "apart": 10 + j}
        for j, kept in enumerate(sweep.kept)
        for k in sweep.steps
        for i, precision in enumerate(PRECISIONS)
    }

    def number(arm: str, key: str) -> float:
        sign = {"lowest": -1, "highest": 1}.get(key, 0)
        return cells[arm]["accuracy"] + sign * cells[arm]["apart"]

    claims = [claim for claim in experiment.claims if claim.group.startswith("CIFAR-10") == bool(sweep.data)]
    assert len(claims) == 15
    assert all(holds(claim, number) for claim in claims)
    for values in cells.values():
        values.update(accuracy=50, apart=10)
    held = {claim.text for claim in claims if holds(claim, number)}
    assert held == {claim.text for claim in claims if "stays within a point" in claim.text}
    for kept, k, (i, precision) in itertools.product(sweep.kept, sweep.steps, enumerate(PRECISIONS)):
        cells[sweep.cell(kept, k, precision)]["accuracy"] = 50 + 2 * i
    assert not any(holds(claim, number) for claim in claims)


def test_figure_9s_steps_are_figure_8s_best() -> None:
    rows = json.loads((DOCS / "adagd-figure8.json").read_text())["rows"]
    mean = {row["name"]: fmean(row["ours"]["accuracy"]) for row in rows if row["seeds"]}
    for q in ("0.7", "0.9", "1"):
        for k in (1, 20, 100):
            setting = f"q-{q}-k-{k}"
            best = max((name for name in mean if name.startswith(f"{setting}-eta")), key=mean.__getitem__)
            (arm,) = (arm for arm in FIGURE_9.arms if arm.name == f"{setting}-epsilon-1")
            assert arm.settings["learning-rate"] * k == pytest.approx(float(best.rpartition("-")[2]))


@pytest.mark.parametrize("experiment", EXPERIMENTS, ids=lambda e: e.name)
def test_all_rows_are_allowed(experiment: Experiment) -> None:
    for arm in experiment.arms:
        config = RunConfig.parse({**experiment.settings, **arm.settings})
        check_settings(config)
        rational = config.participation == "defect"
        assert rational != (
            "no-agent-leaves" in arm.name
            or arm.name.endswith("epsilon-0")
            or ("-k-" in arm.name and "-eta-" in arm.name)
        )
        assert config.participation in ("defect", "always")


@pytest.mark.parametrize("experiment", EXPERIMENTS, ids=lambda e: e.name)
def test_each_is_declared_on_the_papers_data_too(experiment: Experiment) -> None:
    found = {{**experiment.settings, **arm.settings}["kept-share.data"] for arm in experiment.arms}
    tuned = {"fmnist"} if experiment.name == "adagd-figure9" else {"cifar10", "fmnist"}
    assert found == tuned, "steps were tuned on Fashion-MNIST alone"


@pytest.mark.parametrize("experiment", EXPERIMENTS, ids=lambda e: e.name)
def test_each_claim_names_its_group(experiment: Experiment) -> None:
    """A claim without a group would stand under another's heading."""
    assert all(claim.group for claim in experiment.claims)
