"""The grid search: what is tried, what is best, and what is then reported."""

import dataclasses
from pathlib import Path

import pytest
from rich.console import Console

from fedappeal.cli.option_groups import ReproduceOptions
from fedappeal.cli.reproduce import start_reproduction
from fedappeal.runs.launch.in_process import Machine
from fedappeal.settings.config import ConfigError
from fedappeal.studies.experiment import Arm, Quick
from fedappeal.studies.experiment_page import write_page
from fedappeal.studies.grid_search import best_of_each, grid_experiment, grid_keys
from fedappeal.studies.harness import carry_out
from fedappeal.studies.plan import make_plan
from fedappeal.studies.verdict import verdicts
from fedappeal.views.comparison.measures import Measure, last
from tests.studies.small import FEDERATED, computed

MEASURE = Measure("value", "value", last("value"))
MACHINE = Machine(threads=1)


def searched(marks: Path, **changed: object):  # type: ignore[no-untyped-def]
    given = {"grid": {"base": (10, 30, 20), "fails": ([], [0])}, "criterion": "value"}
    arms = (
        Arm("ten", {"base": 10}, {"value": 12.0}, "one"),
        Arm("twenty", {"base": 20}, {"value": 20.0}, "one"),
        Arm("thirty", {"base": 30}, {}, "two"),
    )
    return computed(marks, **{"arms": arms, **given, **changed})


def test_every_combination_for_the_first_groups_rows(tmp_path: Path) -> None:
    experiment = searched(tmp_path)
    assert grid_keys(experiment, "all") == ("base", "fails")
    assert grid_keys(experiment, "fails") == ("fails",)
    tried = grid_experiment(experiment, ("base", "fails"))
    assert tried.name == "computed-grid"
    assert len(tried.arms) == 2 * 3 * 2
    assert tried.arms[1].settings == {"base": 10, "fails": [0]}
    assert {arm.group for arm in tried.arms} == {"ten", "twenty"}
    assert "base" not in tried.quick.settings
    assert all(name.startswith("ten-") for name in tried.quick.arms)
    with pytest.raises(ConfigError, match="grid = 'seed' is not allowed: all, base, fails"):
        grid_keys(experiment, "seed")
    with pytest.raises(ConfigError, match="computed has no grid to search"):
        grid_keys(computed(tmp_path), "all")


def test_settings_of_plug_ins_are_searched_by_their_keys(tmp_path: Path) -> None:
    grid = {"maxfl.server-lr": (0.5, 1.0), "rounds": (1, 2)}
    arms = (Arm("MaxFL", {"strategy": "maxfl", "maxfl.stabilizer": 0.01}),)
    experiment = dataclasses.replace(FEDERATED, arms=arms, grid=grid, criterion="accuracy")
    assert grid_keys(experiment, "rounds, maxfl.server-lr") == ("rounds", "maxfl.server-lr")
    plan = make_plan(
        grid_experiment(experiment, ("maxfl.server-lr",)), tmp_path, 1, changed={"maxfl.stabilizer": 0.1}
    )
    assert [run.arm.name for run in plan.runs] == ["MaxFL-maxfl.server-lr-0.5", "MaxFL-maxfl.server-lr-1.0"]
    assert [run.settings["maxfl.server-lr"] for run in plan.runs] == [0.5, 1.0]
    assert {run.settings["maxfl.stabilizer"] for run in plan.runs} == {0.1}
    assert [run.path.parent.name for run in plan.runs] == ["maxfl-maxfl.server-lr-0.5", "maxfl-maxfl.server-lr-1.0"]


@pytest.mark.parametrize(("better", "best"), [("higher", 30), ("lower", 10)])
def test_the_best_of_each_row_is_reported(tmp_path: Path, better: str, best: int) -> None:
    marks = tmp_path / "marks"
    marks.mkdir()
    measure = Measure("value", "value", last("value"), better=better)  # type: ignore[arg-type]
    experiment = searched(marks, measures=(measure,))
    plan = make_plan(grid_experiment(experiment, ("base",)), tmp_path, seeds=2)
    console = Console(file=open("/dev/null", "w"))  # noqa: SIM115
    results = carry_out(plan, MACHINE, console)
    tuned_plan, tuned = best_of_each(experiment, plan, results)
    assert [arm.name for arm in tuned.arms] == ["ten", "twenty"]
    assert tuned.numbers("ten", measure) == tuned.numbers("twenty", measure) == [best, best + 1]
    assert tuned.arms[0].shown == f"ten (base {best})"
    assert tuned.arms[0].paper == {"value": 12.0}
    page, _, _ = write_page(tuned_plan, tuned, tmp_path)
    assert page.name == "computed-tuned.md"
    assert f"| ten (base {best}) | {best}.50 ± 0.71 (12.00) |" in page.read_text()
    (first, _) = verdicts(tuned)
    assert (first.claim, first.word, first.here, first.papers) == (
        "twenty is more than ten",
        "not reproduced",
        "0.00",
        "+8.00",
    )


def test_settings_that_lost_a_seed_are_not_the_best(tmp_path: Path) -> None:
    marks = tmp_path / "marks"
    marks.mkdir()
    experiment = searched(marks)
    plan = make_plan(grid_experiment(experiment, ("base",)), tmp_path, seeds=2)
    results = carry_out(plan, MACHINE, Console(file=open("/dev/null", "w")))  # noqa: SIM115
    kept = tuple(run for run in results.runs if (run.arm.settings["base"], run.seed) != (30, 0))
    _, tuned = best_of_each(experiment, plan, dataclasses.replace(results, runs=kept))
    assert {run.arm.settings["base"] for run in tuned.runs} == {20}


def test_a_row_that_never_finished_has_no_best(tmp_path: Path) -> None:
    marks = tmp_path / "marks"
    marks.mkdir()
    experiment = searched(marks, settings={"marks": str(marks), "fails": [0]})
    plan = make_plan(grid_experiment(experiment, ("base",)), tmp_path, seeds=1)
    results = carry_out(plan, MACHINE, Console(file=open("/dev/null", "w")))  # noqa: SIM115
    assert len(results.failed) == 6
    with pytest.raises(ConfigError, match="no run of ten was finished"):
        best_of_each(experiment, plan, results)


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    marks = tmp_path / "marks"
    marks.mkdir()
    experiment = searched(marks, quick=Quick(arms=("ten",)))
    monkeypatch.setattr("fedappeal.cli.reproduce.load_experiment", lambda name: experiment)
    start_reproduction(ReproduceOptions("computed", quick=True, out=tmp_path, grid="base"), MACHINE)
    assert "ten (base 30)" in capsys.readouterr().out
    page = (tmp_path / "computed-tuned-quick.md").read_text()
    assert "`fedappeal reproduce computed --quick --grid base --seeds 1` did" in page
    assert (tmp_path / "computed-grid-quick.md").exists()
