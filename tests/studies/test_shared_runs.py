"""An experiment without runs of its own: its numbers are another page's."""

from pathlib import Path
from typing import Any

from fedappeal.reproductions import load_experiment
from fedappeal.studies.experiment import Arm, Experiment, Quick
from fedappeal.studies.record import take_over, taken_over
from fedappeal.studies.results import StudyResults
from fedappeal.views.comparison.measures import Measure, last


def borrower(numbers_of: str) -> Experiment:
    arms = tuple(Arm(name, group="a group", runs_in="lender") for name in "ac")
    fixed: tuple[Any, ...] = ("B: b", "B, figure 1", "", {}, arms, (Measure("two", "2", last("two")),))
    return Experiment("borrower", *fixed, Quick({"rounds": 1}), numbers_of=numbers_of)


LENDER = {
    "experiment": "lender",
    "source": "B, table 1",
    "command": "fedappeal reproduce lender --seeds 2",
    "quick": False,
    "seeds": 2,
    "measures": {"one": "1", "two": "2"},
    "rows": [
        {"name": n, "group": g, "paper": {}, "seeds": [0, 1], "ours": {"one": [1, 2], "two": [v, v + 1]}}
        for n, g, v in (("a", "a group", 3), ("b", "other", 5), ("c", "a group", 7))
    ],
    "figure": True,
    "undrawn": ["b", "c"],
    "diverged": {"a, seed 0": ["3", "1 of 9"], "b, seed 1": ["4", "0 of 9"]},
    "skipped": {"d": "no data"},
    "failed": {"b, seed 0": "it broke", "a, seed 1": "that too"},
    "settings": {
        "a": {"rate": "0.1", "flip": "yes", "clients": "9"},
        "b": {"rate": "0.2", "flip": "no", "clients": "9", "x.mu": "1"},
        "c": {"rate": "0.3", "flip": "yes", "clients": "9"},
    },
    "versions": {"python": ["3.11"]},
}
SOURCE = StudyResults.model_validate(LENDER)


def test_rows_and_columns_that_are_its_own() -> None:
    numbers = taken_over(borrower("lender"), SOURCE)
    assert [(row.name, row.ours) for row in numbers.rows] == [("a", {"two": (3, 4)}), ("c", {"two": (7, 8)})]
    assert numbers.command == "fedappeal reproduce borrower --seeds 2"
    assert (numbers.source, numbers.figure, numbers.measures) == ("B, figure 1", False, {"two": "2"})
    assert numbers.diverged == {"a, seed 0": ("3", "1 of 9")}
    assert numbers.undrawn == ("c",)
    assert (numbers.skipped, numbers.failed) == ({}, {"a, seed 1": "that too"})
    assert {name: row["rate"] for name, row in numbers.settings.items()} == {"a": "0.1", "c": "0.3"}


def test_only_from_one_page_that_is_there(tmp_path: Path) -> None:
    assert take_over(borrower("lender"), tmp_path) is None
    SOURCE.write(tmp_path / "lender.json")
    assert take_over(borrower(""), tmp_path) is None
    assert take_over(load_experiment("maxfl-table4"), tmp_path) is None  # other columns, of the runs of table 3
    assert not (tmp_path / "borrower.json").exists()
    record = take_over(borrower("lender"), tmp_path)
    assert record is not None
    assert StudyResults.read(tmp_path / "borrower.json", "borrower") == record.numbers
