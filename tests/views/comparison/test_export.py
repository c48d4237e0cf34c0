"""A comparison as CSV, JSON, Markdown, LaTeX and a DataFrame."""

import csv
import io
import json
import re
import shutil
import sys
from pathlib import Path

import pandas as pd
import pytest

from fedappeal.record.lines import CONFIG
from fedappeal.settings.config import ConfigError
from fedappeal.views.comparison.export import COLUMNS, FORMATS, compare, rows_of, text_of
from fedappeal.views.comparison.recorded_runs import read_runs
from fedappeal.views.comparison.result import Comparison, compare_runs
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
    "low": 0.14757359702116435,
    "high": 0.8524264029788357,
    "n": 3,
    "difference": 0.3,
    "difference_low": 0.3 - 0.248413771175033,
    "difference_high": 0.3 + 0.248413771175033,
    "wins": 3,
    "pairs": 3,
    "verdict": "better",
}
"""Standard deviations 0.2 and 0.1, times 4.3027 / sqrt(3); the mean share's interval is Wilson's."""


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
    assert means.title == "Results, after round 1: mean over seeds, with its 95 % interval"
    assert means.header == ("strategy", "fedavg", "maxfl")
    rows = {row[0]: row[1:] for row in means.rows}
    assert (rows["seeds"], rows["test accuracy %"]) == (("3", "3"), ("20.0 [5.7, 51.0]", "50.0 [14.8, 85.2]"))
    assert differences.title == (
        "Differences from fedavg, after round 1, paired over seeds; k/n: better in k of n; "
        "1 test at 95 %, Holm's correction over all of them"
    )
    assert differences.header == ("strategy", "maxfl")
    rows = {row[0]: row[1:] for row in differences.rows}
    assert rows["test accuracy %"] == ("+30.0 [+5.2, +54.8] better 3/3",)
    assert {"rounds", "left", "failed replies"}.isdisjoint(rows), "a row that says nothing"


def test_the_tables_say_where_there_is_no_interval_and_what_is_missing(tmp_path: Path) -> None:
    a_run(tmp_path / "a", [{"accuracy": 0.5}])
    (alone,) = comparison_tables(found(tmp_path))
    assert alone.title == "Results, after round 1: one seed, so no interval"
    assert ("test accuracy %", "50.0") in alone.rows
    a_run(tmp_path / "b", [{"accuracy": 0.25}, {"loss": 2.0}], strategy="fedavg", rounds=2)
    a_run(tmp_path / "c", [{"accuracy": 0.75}, {}, {}], strategy="fedavg", rounds=2, seed=1)
    a_run(tmp_path / "d", [{}], strategy="fedavg", rounds=2, seed=2)
    means, differences = comparison_tables(found(tmp_path))
    assert means.title == "Results, after round 1: mean over seeds, with its 95 % interval"
    assert means.header == ("strategy", "maxfl", "fedavg")
    rows = {row[0]: row[1:] for row in means.rows}
    assert rows["seeds"] == ("1, no interval", "3")
    assert rows["test accuracy %"] == ("50.0", "50.0 [0.6, 99.4] (2 of 3)")  # 12.7062 * 0.25 either way, cut to size
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
    assert rows["test accuracy %"] == ("60.0 [4.8, 97.8] (2 of 3)",)  # 12.7062 * 0.1 either way, cut to size


def test_markdown_and_latex(sweep: Path) -> None:
    markdown = text_of(found(sweep), "markdown")
    assert "| test accuracy % | 20.0 [5.7, 51.0] | 50.0 [14.8, 85.2] |" in markdown.splitlines()
    latex = text_of(found(sweep), "latex")
    assert r"test accuracy \% & 20.0 [5.7, 51.0] & 50.0 [14.8, 85.2] \\" in latex.splitlines()
    assert latex.count(r"\begin{tabular}") == 2
    assert r"with its 95 \% interval}" in latex


NASTY = '=HYPERLINK("http://x","y")[a](http://x)<img>\\input{/etc/passwd}'


def test_a_name_is_no_formula_no_link_and_no_command(tmp_path: Path) -> None:
    path = a_run(tmp_path / "a", [{"accuracy": 0.5}])
    record = json.loads((path / CONFIG).read_text())
    for n, strategy in enumerate(("maxfl", "fedavg")):
        record["settings"] |= {"task": NASTY, "strategy": strategy, "seed": n}
        shutil.copytree(path, tmp_path / "runs" / strategy)
        (tmp_path / "runs" / strategy / CONFIG).write_text(json.dumps(record))
    for task in (NASTY, "digits"):  # two tasks: then tables name theirs
        record["settings"]["task"] = task
        (path / CONFIG).write_text(json.dumps(record))
        shutil.copytree(path, tmp_path / "runs" / f"of-{len(task)}")
    comparisons = found(tmp_path / "runs")
    cells = [cell for row in csv.reader(io.StringIO(text_of(comparisons, "csv"))) for cell in row]
    assert f"'{NASTY}" in cells
    assert not [cell for cell in cells if cell.startswith(("=", "@"))]
    markdown, latex = text_of(comparisons, "markdown"), text_of(comparisons, "latex")
    assert "HYPERLINK" in markdown
    assert not re.search(r"(?<!\\)(\]\(|<|://)", markdown)
    assert r"\textbackslash{}input\{" in latex
    assert r"\input" not in latex


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


def test_measures_are_chosen_and_stand_in_their_order(sweep: Path) -> None:
    frame = compare(sweep, measures=("seconds", "accuracy"))
    assert list(frame["measure"]) == ["seconds", "seconds", "accuracy", "accuracy"]
    (means, _) = comparison_tables(compare_runs(read_runs(sweep)[0], measures=["accuracy"]))
    assert [row[0] for row in means.rows] == ["seeds", "test accuracy %"]
    with pytest.raises(ConfigError, match=r"^measures = 'acuracy' is not allowed: .*accuracy, "):
        compare(sweep, measures=["accuracy", "acuracy"])


def test_groups_that_are_the_same_say_so_in_one_row(tmp_path: Path) -> None:
    a_sweep(tmp_path, {"fedavg": [0.5, 0.7], "maxfl": [0.5, 0.7]})
    _, differences = comparison_tables(found(tmp_path))
    assert differences.rows == (("all measures", "the same"),)
