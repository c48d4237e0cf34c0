"""The harness: what is run, what is not run again, what a failure costs, and what is refused."""

import dataclasses
import fcntl
import json
from pathlib import Path

import pytest
from rich.console import Console

from fedappeal.record.lines import EVENTS
from fedappeal.record.reader import Record
from fedappeal.runs.launch.in_process import Machine
from fedappeal.settings.config import ConfigError
from fedappeal.studies.experiment import Arm, Experiment, Quick, Results
from fedappeal.studies.harness import LOCK, carry_out
from fedappeal.studies.plan import RESULT, Plan, make_plan, skipped_lines, slug
from fedappeal.studies.study_record import make_record
from tests.studies.small import FEDERATED, VALUE, computed
from tests.warm import warm_spawn

MACHINE = Machine(at_once=2, threads=1)


def carry(
    plan: Plan, redo: bool = False, machine: Machine = MACHINE
) -> tuple[Results, dict[tuple[str, int], str], str]:
    console = Console(width=200, record=True, quiet=False, file=open("/dev/null", "w"))  # noqa: SIM115
    with warm_spawn():
        results = carry_out(plan, machine, console, redo)
    return results, dict(results.failed), console.export_text()


@pytest.fixture
def marks(tmp_path: Path) -> Path:
    folder = tmp_path / "marks"
    folder.mkdir()
    return folder


def counted(marks: Path) -> dict[str, int]:
    return {mark.name: len(mark.read_text()) for mark in marks.iterdir()}


def test_finished_runs_are_not_run_again(tmp_path: Path, marks: Path) -> None:
    experiment = computed(marks)
    results, failed, _ = carry(make_plan(experiment, tmp_path, seeds=2))
    assert failed == {}
    assert results.numbers("ten", VALUE) == [10, 11]
    assert results.numbers("twenty", VALUE) == [20, 21]
    assert (tmp_path / "computed" / "ten" / "seed-1" / RESULT).exists()

    again, _, said = carry(make_plan(experiment, tmp_path, seeds=3))
    assert "4 of 6 runs are there already" in said
    assert again.numbers("ten", VALUE) == [10, 11, 12]
    assert counted(marks) == {f"{base}-{seed}": 1 for base in (10, 20) for seed in range(3)}


def test_a_failed_run_is_named_and_the_rest_goes_on(tmp_path: Path, marks: Path) -> None:
    experiment = computed(marks, settings={"marks": str(marks), "fails": [1]})
    results, failed, _ = carry(make_plan(experiment, tmp_path))
    assert failed == {
        ("ten", 1): "ArithmeticError: no value for seed 1",
        ("twenty", 1): "ArithmeticError: no value for seed 1",
    }
    assert results.numbers("ten", VALUE) == [10, 12]
    carry(make_plan(experiment, tmp_path))
    assert counted(marks) == {f"{b}-{s}": 2 if s == 1 else 1 for b in (10, 20) for s in range(3)}


def test_other_settings_are_refused_or_redone(tmp_path: Path, marks: Path) -> None:
    carry(make_plan(computed(marks), tmp_path, seeds=1))
    changed = make_plan(computed(marks), tmp_path, seeds=1, changed={"base": 7})
    with pytest.raises(ConfigError, match=r"base = 10, now 7\): --redo runs it again, another --out leaves it"):
        carry(changed)
    results, _, _ = carry(changed, redo=True)
    assert results.numbers("twenty", VALUE) == [7]
    assert counted(marks) == {"10-0": 1, "20-0": 1, "7-0": 2}


def test_the_short_form_is_kept_apart(tmp_path: Path, marks: Path) -> None:
    plan = make_plan(computed(marks), tmp_path, quick=True)
    assert [run.path for run in plan.runs] == [tmp_path / "computed-quick" / "ten" / "seed-0"]
    assert plan.runs[0].settings["base"] == 5


def test_rows_share_the_runs_of_another_experiment(tmp_path: Path, marks: Path) -> None:
    carry(make_plan(computed(marks), tmp_path, seeds=1))
    other = computed(
        marks, name="other", arms=(Arm("ten", {"base": 10}, runs_in="computed"), Arm("one", {"base": 1}))
    )
    results, _, said = carry(make_plan(other, tmp_path, seeds=1))
    assert "1 of 2 runs are there already" in said
    assert results.numbers("ten", VALUE) == [10]
    assert counted(marks)["10-0"] == 1


def test_no_other_process_is_at_the_same_runs(tmp_path: Path, marks: Path) -> None:
    (tmp_path / "computed").mkdir()
    with open(tmp_path / "computed" / LOCK, "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(ConfigError, match="another process is at the runs in"):
            carry(make_plan(computed(marks), tmp_path))
    assert counted(marks) == {}


def test_runs_that_are_there_are_read_while_another_process_makes_more_of_them(tmp_path: Path, marks: Path) -> None:
    carry(make_plan(computed(marks), tmp_path, seeds=1))
    with open(tmp_path / "computed" / LOCK, "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        results, _, _ = carry(make_plan(computed(marks), tmp_path, seeds=1))
        assert results.numbers("ten", VALUE) == [10]
        with pytest.raises(ConfigError, match="another process is at the runs in"):
            carry(make_plan(computed(marks), tmp_path, seeds=2))
        with pytest.raises(ConfigError, match="--redo runs it again"):
            carry(make_plan(computed(marks), tmp_path, seeds=1, changed={"base": 7}))
        with pytest.raises(ConfigError, match="another process is at the runs in"):
            carry(make_plan(computed(marks), tmp_path, seeds=1, changed={"base": 7}), redo=True)
    assert counted(marks) == {"10-0": 1, "20-0": 1}


@pytest.mark.e2e
def test_federated_runs_and_one_that_was_interrupted(tmp_path: Path) -> None:
    plan = make_plan(FEDERATED, tmp_path)
    results, failed, _ = carry(plan)
    assert failed == {}
    assert [len(run.lines) for run in results.runs] == [2, 2]
    first, second = plan.runs
    keys = [Record(run.path).config["run-key"] for run in plan.runs]
    events = [line for line in Record(first.path).events if line["event"] != "finished"]
    (first.path / EVENTS).write_text("".join(json.dumps(line) + "\n" for line in events))

    again, _, said = carry(plan)
    assert "1 of 2 runs are there already" in said
    assert Record(first.path).config["run-key"] != keys[0], "clients forget with their process: it begins anew"
    assert Record(second.path).config["run-key"] == keys[1]
    accuracy = FEDERATED.measures[0]
    assert again.numbers("FedAvg", accuracy) == results.numbers("FedAvg", accuracy)
    assert again.numbers("MaxFL", accuracy) != again.numbers("FedAvg", accuracy)
    with pytest.raises(ConfigError, match=r"rounds = 2, now 3"):
        carry(make_plan(FEDERATED, tmp_path, changed={"rounds": 3}))


def test_a_row_whose_data_cannot_be_had_is_skipped(tmp_path: Path) -> None:
    arms = (*FEDERATED.arms[:1], Arm("far", {"strategy": "fedavg", "task": "nowhere.at_all:task"}))
    plan = make_plan(dataclasses.replace(FEDERATED, arms=arms, quick=Quick()), tmp_path)
    assert {run.arm.name for run in plan.runs} == {"FedAvg"}
    assert "nowhere.at_all:task" in plan.skipped["far"]
    with pytest.raises(ConfigError, match="federated cannot be run here"):
        make_plan(dataclasses.replace(FEDERATED, arms=arms[1:]), tmp_path)


def test_a_group_that_is_skipped_as_a_whole_is_named_once(tmp_path: Path) -> None:
    far = {"strategy": "fedavg", "task": "nowhere.at_all:task"}
    arms = [
        *FEDERATED.arms[:1],
        *(Arm(name, far, {}, "Far") for name in ("a", "b")),
        Arm("c", far, {"accuracy": 1.0}),
    ]
    plan = make_plan(dataclasses.replace(FEDERATED, arms=tuple(arms), quick=Quick()), tmp_path)
    (line,) = skipped_lines(plan.experiment.arms, plan.skipped)
    assert line.startswith("all of 'Far'; c: ")
    record = make_record(plan, Results(plan.experiment, (), skipped=plan.skipped), figure=False)
    assert [arm.name for arm in record.arms()] == ["FedAvg", "c"], "of the others there is nothing to show"


@pytest.mark.parametrize(
    ("experiment", "changed", "line"),
    [
        (FEDERATED, {"rouns": 3}, "unknown setting 'rouns'; did you mean 'rounds'"),
        (FEDERATED, {"rounds": 0}, "rounds = 0 is not allowed"),
        (FEDERATED, {"maxfl.server-lr": -1.0}, "maxfl.server-lr = -1.0 is not allowed"),
        (FEDERATED, {"solo.step": 3}, "unknown setting 'solo.step'; did you mean 'solo.steps'"),
        (FEDERATED, {"seed": 7}, "set = 'seed=7' is not allowed: .*--seeds says how many"),
        (FEDERATED, {"strategy": "maxfk"}, "strategy = 'maxfk' is not allowed"),
        (computed(Path("marks")), {"bass": 3}, "unknown setting 'bass'"),
    ],
)
def test_what_is_not_allowed_is_one_line_before_anything_starts(
    experiment: Experiment, changed: dict[str, object], line: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=line):
        make_plan(experiment, tmp_path / "runs", changed=changed)
    assert not (tmp_path / "runs").exists()
    with pytest.raises(ConfigError, match="jobs = 0 is not allowed"):
        carry(make_plan(FEDERATED, tmp_path / "runs"), machine=Machine(at_once=0))


def test_names_of_folders() -> None:
    assert slug("q-FFL (q = 10), Byz=0.05") == "q-ffl-q-10-byz-0.05"
    with pytest.raises(ValueError, match="would share a folder"):
        make_plan(
            computed(Path("m"), arms=(Arm("a b", {"base": 1}), Arm("A-B", {"base": 2})), quick=Quick()),
            Path("runs"),
        )
