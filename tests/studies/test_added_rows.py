"""Rows and seeds that join a page: it is the page that a run of all of them makes."""

import dataclasses
import json
import shutil
from pathlib import Path

import pytest
from rich.console import Console

from fedappeal.cli import reproduce
from fedappeal.cli.option_groups import ReproduceOptions
from fedappeal.cli.reproduce import start_reproduction
from fedappeal.runs.launch.in_process import Machine
from fedappeal.settings.config import ConfigError
from fedappeal.settings.model import Failure
from fedappeal.studies.experiment import Arm, Experiment, Quick, Results
from fedappeal.studies.experiment_page import add_to_page, page_of, write_page
from fedappeal.studies.harness import carry_out
from fedappeal.studies.plan import make_plan
from fedappeal.studies.results import StudyResults
from fedappeal.studies.study_record import StudyRecord, make_record, read_record
from tests.studies.small import FEDERATED, computed


def experiment_in(tmp_path: Path) -> Experiment:
    (tmp_path / "marks").mkdir(exist_ok=True)
    return computed(tmp_path / "marks", settings={"marks": str(tmp_path / "marks"), "fails": [2]})


def page_of_run(experiment: Experiment, tmp_path: Path, pages: str, seeds: int = 3) -> Path:
    plan = make_plan(experiment, tmp_path / "runs", seeds=seeds)
    with open("/dev/null", "w") as nowhere:
        results = carry_out(plan, Machine(threads=1), Console(file=nowhere))
    return write_page(plan, results, tmp_path / pages)[0]


def with_first_row(experiment: Experiment) -> Experiment:
    return dataclasses.replace(experiment, arms=experiment.arms[:1])


@pytest.mark.parametrize("before", [1, 3, 4])
def test_the_command_runs_what_is_missing_alone(before: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page has one row, of fewer seeds; its runs are gone, and are not done again."""
    whole = experiment_in(tmp_path)
    page = page_of_run(with_first_row(whole), tmp_path, "pages", before)
    assert "| twenty |" not in page.read_text()
    shutil.rmtree(tmp_path / "runs")
    monkeypatch.setattr(reproduce, "load_experiment", lambda name: whole)
    options = ReproduceOptions("computed", 4, out=tmp_path / "runs", pages=tmp_path / "pages", missing=True)
    with pytest.raises(Failure, match="seed 2"):  # seed 2 fails in all rows
        start_reproduction(options, Machine(threads=1))
    added = page.read_text(), page.with_suffix(".json").read_text()
    marks = {mark.name: len(mark.read_text()) for mark in (tmp_path / "marks").iterdir()}
    assert marks == {
        f"{base}-{seed}": 2 if (base, seed) == (10, 2) and before > 2 else 1 for base in (10, 20) for seed in range(4)
    }
    at_once = page_of_run(whole, tmp_path, "other", 4)
    assert added[0] == at_once.read_text()
    numbers = json.loads(added[1])
    assert numbers == json.loads(at_once.with_suffix(".json").read_text())


def test_a_page_with_all_rows_is_one_line(tmp_path: Path) -> None:
    whole = dataclasses.replace(FEDERATED, arms=FEDERATED.arms[:1])
    page = StudyRecord(whole, with_numbers(record_of(whole, tmp_path)))
    with pytest.raises(ConfigError, match="missing: the page of federated has all rows"):
        page.missing(tmp_path)


def test_a_picture_that_cannot_be_drawn_costs_no_numbers(tmp_path: Path) -> None:
    def broken(results: Results) -> None:
        raise RuntimeError("no ink")

    whole = dataclasses.replace(experiment_in(tmp_path), glances={"-gaps": broken})
    page_of_run(with_first_row(whole), tmp_path, "pages")
    record = read_record(whole, tmp_path / "pages")
    plan = record.missing(tmp_path / "runs")
    with open("/dev/null", "w") as nowhere:
        results = carry_out(plan, Machine(threads=1), Console(file=nowhere))
    page, whole_record, trouble = add_to_page(record, plan, results, tmp_path / "pages")
    assert trouble == "RuntimeError: no ink"
    assert [row.name for row in whole_record.numbers.rows] == ["ten", "twenty"]
    assert "| twenty |" in page.read_text()


@pytest.mark.parametrize(
    ("changed", "line"),
    [
        ({"quick": True}, "quick is not allowed with --missing: its rows are run as the page's others were"),
        ({"grid": "all"}, "grid is not allowed"),
        ({"changed": ("rounds=3",)}, "set is not allowed"),
        ({"from_numbers": True}, "from-numbers is not allowed"),
        ({}, "maxfl-figure4.json cannot be read"),
    ],
)
def test_what_would_run_other_rows_is_one_line(changed: dict[str, object], line: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=line):
        start_reproduction(ReproduceOptions("maxfl-figure4", out=tmp_path, missing=True, **changed), Machine())  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


def record_of(experiment: Experiment, tmp_path: Path) -> StudyRecord:
    return make_record(make_plan(experiment, tmp_path), Results(experiment, ()), figure=False)


@pytest.mark.parametrize("first", [slice(0, 1), slice(0, 2), slice(1, 4), slice(0, 4, 2), slice(1, 4, 2)])
def test_the_page_is_as_of_one_run_of_all_rows(first: slice, tmp_path: Path) -> None:
    arms = (
        Arm("FedAvg", {"strategy": "fedavg"}),
        Arm("MaxFL", {"strategy": "maxfl", "maxfl.server-lr": 0.5}),
        Arm("MaxFL, one wave", {"strategy": "maxfl", "maxfl.server-lr": 1.0, "ask-on": False}),
        Arm("FedAvg, faster", {"strategy": "fedavg", "learning-rate": 0.5}),
    )
    whole = dataclasses.replace(FEDERATED, arms=arms)
    page = StudyRecord(whole, with_numbers(record_of(dataclasses.replace(whole, arms=arms[first]), tmp_path)))
    added = missing_of(page, tmp_path)
    assert [arm.name for arm in added.experiment.arms] == [arm.name for arm in arms if arm not in arms[first]]
    joined = page.joined(StudyRecord(added.experiment, with_numbers(added)))
    assert list(joined.numbers.undrawn) == [arm.name for arm in added.experiment.arms]
    drawn = StudyRecord(whole, joined.numbers.model_copy(update={"undrawn": ()}))
    assert page_of(drawn) == page_of(StudyRecord(whole, with_numbers(record_of(whole, tmp_path))))
    for record, lacks in ((joined, True), (drawn, False)):
        page_text = page_of(StudyRecord(whole, record.numbers.model_copy(update={"figure": True})))
        assert f"![{whole.title}]({whole.name}.png)" in page_text
        assert (f"[The runs over the rounds]({whole.name}.png), without " in page_text) == lacks


def missing_of(page: StudyRecord, tmp_path: Path) -> StudyRecord:
    plan = page.missing(tmp_path)
    return make_record(plan, Results(plan.experiment, ()), figure=False)


def with_numbers(record: StudyRecord) -> StudyResults:
    """A record in which the only seed of each row has a number, a failed run and one that diverged."""
    change = {"seeds": (0,), "rounds": (2,), "ours": {"accuracy": (50.0,)}}
    change |= {"failed": {0: "lost"}, "diverged": {0: ("1", "1 of 3")}}
    return record.numbers.model_copy(
        update={"rows": tuple(row.model_copy(update=change) for row in record.numbers.rows)}
    )


def test_a_row_without_all_seeds_is_run_again_and_one_that_is_no_more_is_left_out(tmp_path: Path) -> None:
    arms = tuple(Arm(name, {"learning-rate": rate}) for name, rate in (("a", 0.1), ("b", 0.2), ("c", 0.3)))
    before = dataclasses.replace(FEDERATED, arms=(*arms[:2], Arm("gone", {})))
    numbers = with_numbers(record_of(before, tmp_path))
    lacks = {"seeds": (), "rounds": (), "ours": {"accuracy": ()}, "diverged": {}}
    numbers = numbers.model_copy(update={"rows": (numbers.rows[0].model_copy(update=lacks), *numbers.rows[1:])})
    page = StudyRecord(dataclasses.replace(FEDERATED, arms=arms), numbers)
    added = missing_of(page, tmp_path)
    assert [arm.name for arm in added.experiment.arms] == ["a", "c"]
    joined = page.joined(added).numbers
    assert [row.name for row in joined.rows if row.settings] == ["a", "b", "c"]
    assert joined.failed == {("b", 0): "lost"}
    assert {row.name: row.diverged for row in joined.rows} == {"a": {}, "b": {0: ("1", "1 of 3")}, "c": {}}


def test_a_row_without_a_new_run_stays_in_the_picture(tmp_path: Path) -> None:
    arms = tuple(Arm(name, {"learning-rate": rate}) for name, rate in (("a", 0.1), ("b", 0.2)))
    whole = dataclasses.replace(FEDERATED, arms=arms)
    page = StudyRecord(whole, with_numbers(record_of(whole, tmp_path)))
    skipped, lost, again = (
        page.numbers.rows[0].model_copy(update={"seeds": (), "rounds": (), "ours": {"accuracy": ()}, **more})
        for more in ({"skipped": "no data"}, {"failed": {1: "lost"}}, {"seeds": (1,), "ours": {"accuracy": (1.0,)}})
    )
    for row, undrawn in ((skipped, ()), (lost, ()), (again, ("a",))):
        added = StudyRecord(whole, page.numbers.model_copy(update={"rows": (row,)}))
        assert page.joined(added).numbers.undrawn == undrawn


def test_numbers_join_a_file_that_has_none(tmp_path: Path) -> None:
    numbers = with_numbers(record_of(with_first_row(FEDERATED), tmp_path))
    (row,) = numbers.rows
    none = row.model_copy(update={"seeds": (), "rounds": (), "ours": {}, "failed": {0: "disk"}, "diverged": {}})
    empty = numbers.model_copy(update={"rows": (none,), "measures": {}})
    assert empty.joined(numbers, [row.name]) == numbers
    kept = numbers.joined(empty, [row.name])
    assert (kept.measures, kept.rows[0].ours) == (numbers.measures, row.ours)


def test_a_setting_that_is_newer_than_the_page_counts_with_its_default(tmp_path: Path) -> None:
    arms = (Arm("all", {}), Arm("one wave", {"ask-on": False}))
    whole = dataclasses.replace(FEDERATED, arms=arms)
    numbers = record_of(with_first_row(whole), tmp_path).numbers
    (row,) = numbers.rows
    older = {key: value for key, value in row.settings.items() if key not in ("ask-on", "momentum")}
    page = StudyRecord(whole, numbers.model_copy(update={"rows": (row.model_copy(update={"settings": older}),)}))
    rows = page.joined(missing_of(page, tmp_path)).numbers.rows
    assert {row.name: row.settings["ask-on"] for row in rows} == {"all": "True", "one wave": "False"}
    assert {row.settings["momentum"] for row in rows} == {"0.0"}


def test_fewer_seeds_other_settings_and_a_short_form_are_one_line(tmp_path: Path) -> None:
    whole = experiment_in(tmp_path)
    page_of_run(with_first_row(whole), tmp_path, "pages")
    page = read_record(whole, tmp_path / "pages")
    with pytest.raises(ConfigError, match="seeds = 2 is not allowed: the page of computed has 3"):
        page.missing(tmp_path, 2)
    (row,) = page.numbers.rows
    other = row.model_copy(update={"settings": {**row.settings, "base": "11"}})
    for changed, line in (
        ({"rows": (other,)}, "row 'ten' was run with base = 11"),
        ({"quick": True}, "the numbers of computed are of the short form"),
        ({"command": "fedappeal reproduce computed --set base=3"}, "the numbers of computed are of a run with --set"),
    ):
        with pytest.raises(ConfigError, match=line):
            StudyRecord(whole, page.numbers.model_copy(update=changed)).missing(tmp_path, 5)


def test_numbers_without_any_row_of_the_experiment_are_refused(tmp_path: Path) -> None:
    """Rows of earlier versions had other keys."""
    whole = experiment_in(tmp_path)
    page_of_run(whole, tmp_path, "pages")
    arms = tuple(dataclasses.replace(arm, name=f"{arm.name}-now") for arm in whole.arms)
    renamed = dataclasses.replace(whole, arms=arms, quick=Quick())
    with pytest.raises(ConfigError, match="has no row of computed: it was written by an older version"):
        read_record(renamed, tmp_path / "pages")
