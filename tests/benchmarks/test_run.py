"""The benchmarks: medians, ratios, parts and attacks by hand, and the rows that docs name."""

import re
import time
from pathlib import Path

import numpy as np
import pytest

from benchmarks.__main__ import ROWS
from benchmarks.influence import attack
from benchmarks.run import SMALL, Clock, Figures, Row, scaled, table

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


def test_the_first_part_is_the_start_and_the_last_one_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds, used = iter([0.0, 5.0, 6.0, 8.0, 20.0]), iter([0.0, 3.0, 3.5, 4.5, 9.0])
    monkeypatch.setattr(time, "perf_counter", lambda: next(seconds))
    monkeypatch.setattr(time, "process_time", lambda: next(used))
    clock = Clock()
    for _ in range(4):
        clock.mark()
    assert clock.rounds() == {"s": [1.0, 2.0], "CPU s": [0.5, 1.0], "start s": 5.0, "start CPU s": 3.0}


def test_sizes_are_a_fiftieth_where_rows_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SMALL, raising=False)
    assert [scaled(size) for size in (5, 100, 1000)] == [5, 100, 1000]
    monkeypatch.setenv(SMALL, "1")
    assert [scaled(size) for size in (5, 100, 1000)] == [5, 10, 20]


def test_attackers_send_what_their_formulas_say() -> None:
    honest, update = np.array([[1.0, 0.0], [3.0, 0.0], [2.0, 0.0]]), np.array([0.0, 2.0])
    ahead = np.array([0.0, 1.0])
    assert attack("flip", update, honest, None).tolist() == [0.0, -3.8]
    assert attack("ipm", update, honest, None) == pytest.approx([-3.8, 0.0])
    assert attack("alie", update, honest, None) == pytest.approx([2 - 1.5 * (2 / 3) ** 0.5, 0.0])
    known = attack("known", update, honest, ahead)
    assert np.linalg.norm(known) == pytest.approx(2.0)
    assert known @ ahead / np.linalg.norm(known) == pytest.approx(np.cos(np.deg2rad(87)), abs=0.005)


def test_docs_name_rows_that_are_there() -> None:
    pages = (DOCS / f"{name}.md" for name in ("benchmarks", "influence", "staying"))
    text = "".join(page.read_text() for page in pages)
    commands = re.findall(r"python -m benchmarks (?!ROW\b)([\w/-]+)", text)
    assert {"simulation", "deployment", "influence", "staying"} <= set(commands), "each page names rows"
    for name in commands:
        assert any(row == name or row.startswith(f"{name}/") for row in ROWS), name
    assert all(row.over in ("", *row.arms) for row in ROWS.values())
