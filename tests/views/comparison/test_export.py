"""A comparison as CSV, JSON, Markdown, LaTeX and a DataFrame."""

import csv
import io
import json
import sys
from pathlib import Path

import pandas as pd
import pytest

from fedappeal.settings.config import ConfigError
from fedappeal.views.comparison.export import COLUMNS, FORMATS, compare, rows_of, text_of
from fedappeal.views.comparison.result import Comparison, compare_runs, read_runs
from fedappeal.views.comparison.table import comparison_tables
from tests.views.comparison.recorded import a_run, a_sweep


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    return a_sweep(tmp_path / "sweep", {"fedavg": [0.1, 0.2, 0.3], "maxfl": [0.3, 0.5, 0.7]}, **{"solo.steps": 9})


def found(path: Path) -> list[Comparison]:
    return compare_runs(read_runs(path)[0])


EXPECTED = {
    "task": "digits",
    "group": "strategy=maxfl",
    "measure": "accuracy",
    "mean": 0.5,
    "low": 0.5 - 0.496827542350066,
    "high": 0.5 + 0.496827542350066,
    "n": 3,
    "difference": 0.3,
    "difference_low": 0.3 - 0.248413771175033,
    "difference_high": 0.3 + 0.248413771175033,
    "wins": 3,
    "pairs": 3,
    "verdict": "better",
}
"""Standard deviations 0.2 and 0.1, times 4.3027 / sqrt(3)."""


def test_json_and_csv_hold_every_number(sweep: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)  # neither needs it
    rows = json.loads(text_of(found(sweep), "json"))
    assert [list(row) for row in rows] == [list(COLUMNS)] * len(rows)
    (row,) = [row for row in rows if (row["group"], row["measure"]) == ("strategy=maxfl", "accuracy")]
    assert row == pytest.approx(EXPECTED)
    lines = list(csv.DictReader(io.StringIO(text_of(found(sweep), "csv"))))
    assert [{key: value or None for key, value in line.items()} for line in lines] == [
        {key: None if value is None else str(value) for key, value in row.items()} for row in rows
    ]


def test_the_baseline_has_no_difference(sweep: Path) -> None:
    baseline = [row for row in rows_of(found(sweep)) if row["group"] == "strategy=fedavg"]
    assert {tuple(row[key] for key in COLUMNS[7:]) for row in baseline} == {(None,) * 6}


def test_the_tables(sweep: Path) -> None:
    means, differences = comparison_tables(found(sweep))
    assert means.title == "Results: mean ± 95 % interval over seeds"
    assert means.header == ("strategy", "fedavg", "maxfl")
    rows = {row[0]: row[1:] for row in means.rows}
    assert (rows["seeds"], rows["test accuracy %"]) == (("3", "3"), ("20.0 ± 24.8", "50.0 ± 49.7"))
    assert differences.title == "Differences from fedavg, paired over seeds; k/n: better in k of n"
    assert differences.header == ("strategy", "maxfl")
    rows = {row[0]: row[1:] for row in differences.rows}
    assert rows["test accuracy %"] == ("+30.0 ± 24.8 better 3/3",)
    assert rows["rounds"] == ("+0 ± 0 level",)


def test_the_tables_say_where_there_is_no_interval_and_what_is_missing(tmp_path: Path) -> None:
    a_run(tmp_path / "a", [{"accuracy": 0.5}])
    (alone,) = comparison_tables(found(tmp_path))
    assert alone.title == "Results: one seed, so no interval"
    assert ("test accuracy %", "50.0") in alone.rows
    a_run(tmp_path / "b", [{"accuracy": 0.25}, {"loss": 2.0}], strategy="fedavg", rounds=2)
    a_run(tmp_path / "c", [{"accuracy": 0.75}, {}, {}], strategy="fedavg", rounds=2, seed=1)
    a_run(tmp_path / "d", [{}], strategy="fedavg", rounds=2, seed=2)
    means, differences = comparison_tables(found(tmp_path))
    assert means.title == "Results, after round 1: mean ± 95 % interval over seeds"
    assert means.header == ("strategy", "maxfl", "fedavg")
    rows = {row[0]: row[1:] for row in means.rows}
    assert (rows["rounds"], rows["seeds"]) == (("1", "1 ± 0"), ("1, no interval", "3"))
    assert rows["test accuracy %"] == ("50.0", "50.0 ± 317.7 (2 of 3)")  # 12.7062 * 0.25
    assert "test loss" not in rows  # of round 2
    rows = {row[0]: row[1:] for row in differences.rows}
    assert rows["test accuracy %"] == ("+25.0 1/1",)


def test_a_group_without_a_number_has_none(tmp_path: Path) -> None:
    a_run(tmp_path / "a", [{"accuracy": 0.5}])
    a_run(tmp_path / "b", [{"loss": 0.5}], strategy="fedavg", seed=1)
    means, differences = comparison_tables(found(tmp_path))
    assert ("test accuracy %", "50.0", "-") in means.rows
    assert ("test loss", "-", "0.500") in means.rows
    assert {row[1:] for row in differences.rows[1:]} == {("-",)}  # no common seed


def test_a_mean_over_fewer_seeds_than_the_group_has_says_so(tmp_path: Path) -> None:
    a_sweep(tmp_path, {"fedavg": [0.5, 0.7]})
    a_run(tmp_path / "c", [{}], strategy="fedavg", seed=7)
    (means,) = comparison_tables(found(tmp_path))
    rows = {row[0]: row[1:] for row in means.rows}
    assert rows["seeds"] == ("3",)
    assert rows["test accuracy %"] == ("60.0 ± 127.1 (2 of 3)",)  # 12.7062 * 0.1


def test_markdown_and_latex(sweep: Path) -> None:
    markdown = text_of(found(sweep), "markdown")
    assert "| test accuracy % | 20.0 ± 24.8 | 50.0 ± 49.7 |" in markdown.splitlines()
    latex = text_of(found(sweep), "latex")
    assert r"test accuracy \% & 20.0 $\pm$ 24.8 & 50.0 $\pm$ 49.7 \\" in latex.splitlines()
    assert latex.count(r"\begin{tabular}") == 2
    assert r"95 \% interval over seeds}" in latex


def test_a_data_frame(sweep: Path) -> None:
    frame = compare(sweep)
    assert list(frame.columns) == list(COLUMNS)
    chosen = frame.set_index(["group", "measure"]).loc[("strategy=maxfl", "accuracy")].to_dict()
    assert chosen == pytest.approx({key: value for key, value in EXPECTED.items() if key not in ("group", "measure")})
    assert frame["wins"].dtype == pd.Int64Dtype()
    assert frame.attrs["notes"] == []
    assert not frame.duplicated(["task", "group", "measure"]).any()
    other = compare(sorted(sweep.iterdir()), baseline="maxfl")
    assert set(other.loc[other["difference"].notna(), "group"]) == {"strategy=fedavg"}
    assert set(compare(sweep, each_run=True)["n"]) == {1}


def test_a_data_frame_warns_where_runs_are_cut(sweep: Path) -> None:
    a_run(sweep / "z", [{}], strategy="maxfl", seed=9, rounds=3)
    a_run(sweep / "zz", [], strategy="maxfl", seed=10)
    with pytest.warns(UserWarning, match=r"not finished: z \(round 1 of 3\); all runs are compared after round 1"):
        frame = compare(sweep)
    assert frame.attrs["notes"][-1] == "left out, because no round is finished: zz"


def test_without_pandas_one_line_says_how_to_get_it(sweep: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    for make in (lambda: compare(sweep), lambda: text_of(found(sweep), "latex")):
        with pytest.raises(ConfigError, match=r"LaTeX need pandas: pip install 'fedappeal\[frames\]'"):
            make()
    assert FORMATS == ("csv", "latex", "markdown", "json")
