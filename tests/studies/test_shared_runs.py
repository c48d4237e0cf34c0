"""An experiment without runs of its own: its numbers are another page's."""

import json
from pathlib import Path
from typing import Any

from fedappeal.reproductions import load_experiment
from fedappeal.studies.experiment import Arm, Experiment, Quick
from fedappeal.studies.shared_runs import take_over, taken_over
from fedappeal.views.comparison.measures import Measure, last


def borrower(numbers_of: str) -> Experiment:
    arms = tuple(Arm(name, group="a group", runs_in="lender") for name in "ac")
    fixed: tuple[Any, ...] = ("B: b", "B, figure 1", "", {}, arms, (Measure("two", "2", last("two")),))
    return Experiment("borrower", *fixed, Quick({"rounds": 1}), numbers_of=numbers_of)


SOURCE = {
    "experiment": "lender",
    "source": "B, table 1",
    "command": "fedappeal reproduce lender --seeds 2",
    "quick": False,
    "seeds": 2,
    "measures": {"one": "1", "two": "2"},
    "arms": [
        {"name": n, "group": g, "paper": {}, "seeds": [0, 1], "ours": {"one": [1, 2], "two": [v, v + 1]}}
        for n, g, v in (("a", "a group", 3), ("b", "other", 5), ("c", "a group", 7))
    ],
    "figure": True,
    "diverged": [["a group", "a, seed 0", "3", "1 of 9"], ["other", "b, seed 1", "4", "0 of 9"]],
    "skipped": {"d": "no data"},
    "failed": {"b, seed 0": "it broke", "a, seed 1": "that too"},
    "settings": {
        "seeds": [0, 1],
        "different": ["rate", "flip", "mu"],
        "rows": {"a": ["0.1", "yes", ""], "b": ["0.2", "no", "1"], "c": ["0.3", "yes", ""]},
        "shared": {"clients": "9"},
    },
    "versions": {"python": ["3.11"]},
    "undrawn": ["b", "c"],
}


def test_rows_and_columns_that_are_its_own() -> None:
    found = taken_over(borrower("lender"), SOURCE)
    assert [(arm["name"], arm["ours"]) for arm in found["arms"]] == [("a", {"two": [3, 4]}), ("c", {"two": [7, 8]})]
    assert found["command"] == "fedappeal reproduce borrower --seeds 2"
    assert (found["source"], found["figure"], found["measures"]) == ("B, figure 1", False, {"two": "2"})
    assert found["diverged"] == [["a group", "a, seed 0", "3", "1 of 9"]]
    assert found["undrawn"] == ["c"]
    assert (found["skipped"], found["failed"]) == ({}, {"a, seed 1": "that too"})
    assert found["settings"] == {
        "seeds": [0, 1],
        "different": ["rate"],
        "rows": {"a": ["0.1"], "c": ["0.3"]},
        "shared": {"clients": "9", "flip": "yes"},
    }


def test_only_from_one_page_that_is_there(tmp_path: Path) -> None:
    assert take_over(borrower("lender"), tmp_path) is None
    (tmp_path / "lender.json").write_text(json.dumps(SOURCE))
    assert take_over(borrower(""), tmp_path) is None
    assert take_over(load_experiment("maxfl-table4"), tmp_path) is None  # other columns, of the runs of table 3
    assert not (tmp_path / "borrower.json").exists()
    record = take_over(borrower("lender"), tmp_path)
    assert record is not None
    assert json.loads((tmp_path / "borrower.json").read_text()) == record.numbers
