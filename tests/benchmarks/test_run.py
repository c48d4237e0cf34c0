"""The benchmarks' runner: medians and ratios by hand, rows that are there already, and the rows that docs name."""

import re
from pathlib import Path
from typing import Any

import pytest

from benchmarks.__main__ import ROWS
from benchmarks.resumed import resumed
from benchmarks.run import Figures, Row, table, timed

DOCS = Path(__file__).parents[2] / "docs"


def test_a_ratio_is_the_median_of_the_pairs(capsys: pytest.CaptureFixture[str]) -> None:
    """Medians within a run: 2, 4 and 9 over 1, 4 and 3. Pairs: 2, 1 and 3."""
    runs: dict[str, list[Figures]] = {
        "ours": [{"s": [1.0, 2.0, 3.0]}, {"s": [4.0]}, {"s": [9.0], "takes": "layers"}],
        "plain": [{"s": 1.0}, {"s": 4.0}, {"s": 3.0}],
    }
    table("a row", Row({}, "plain", "s"), runs)
    lines = [re.split(r"\s{2,}", line) for line in capsys.readouterr().out.splitlines()[1:]]
    assert lines == [
        ["a row", "s", "takes", "s over plain"],
        ["ours", "4", "layers", "2.00 (1.00 to 3.00)"],
        ["plain", "3", "1.00 (1.00 to 1.00)"],
    ]


def test_some_work_is_timed_after_it_has_warmed_up() -> None:
    calls = list[int]()
    found = timed(lambda: calls.append(1), times=3)
    assert len(calls) == 4
    assert {key: len(values) for key, values in found.items() if isinstance(values, list)} == {"s": 3, "CPU s": 3}


def doubled(row: dict[str, Any]) -> dict[str, Any]:
    return {"double": 2 * row["n"]}


def failing(row: dict[str, Any]) -> dict[str, Any]:
    raise AssertionError(f"{row} was there")


def test_a_row_that_is_there_is_not_run_again(tmp_path: Path) -> None:
    rows, file = [{"n": n} for n in range(3)], tmp_path / "rows.jsonl"
    first = resumed(file, rows[:2], doubled)
    assert first == [{"n": 0, "double": 0}, {"n": 1, "double": 2}]
    assert resumed(file, rows[:2], failing) == first
    assert resumed(file, rows, doubled, jobs=2) == [*first, {"n": 2, "double": 4}]


def test_docs_name_rows_that_are_there() -> None:
    commands = re.findall(r"python -m benchmarks (?!ROW\b)([\w/-]+)", (DOCS / "benchmarks.md").read_text())
    assert len(commands) > 10
    for name in commands:
        assert any(row == name or row.startswith(f"{name}/") for row in ROWS), name
    assert all(row.over in ("", *row.arms) for row in ROWS.values())
