"""The catalogue: a number of a round that it names stands in every view; its keys are those that runs write."""

import io
from importlib.util import find_spec
from pathlib import Path

import pytest
from rich.console import Console

from fedappeal.cli.listing import description
from fedappeal.protocol.metric import Metric
from fedappeal.record import columns
from fedappeal.record.columns import (
    COLUMNS,
    GAUGE,
    HEADLINE,
    LINE,
    MEASURE,
    NUMBER,
    OF_METRIC,
    PAGE,
    PERCENT,
    TABLE,
    Column,
    check_names,
    column_rows,
    shown_in,
)
from fedappeal.record.reader import Record
from fedappeal.runs.plan import RunPlan
from fedappeal.settings.config import ConfigError, RunConfig
from fedappeal.views.comparison.measures import run_measures
from fedappeal.views.comparison.recorded_runs import read_runs
from fedappeal.views.comparison.result import compare_runs
from fedappeal.views.live.live_run import LiveRun
from fedappeal.views.report.report import run_charts
from fedappeal.views.terminal.view import RunView
from fedappeal.views.tracking.tracker_threads import numbers
from tests.views.comparison.recorded import a_run

NEW = Column("jain_index", "Jain's index", "how alike the clients are served, 1: all alike")


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run whose rounds hold a number that the catalogue has since a moment ago."""
    monkeypatch.setattr(columns, "COLUMNS", (*COLUMNS, NEW))
    lines = [{"accuracy": 0.5, "jain_index": value, "sat_out": 0, "evaluated": 2} for value in (0.625, 0.875)]
    return a_run(tmp_path / "run", lines)


def test_a_new_number_stands_on_the_terminal(run: Path) -> None:
    out = io.StringIO()
    view = RunView(RunPlan.of(RunConfig(rounds=2), run), Console(file=out, width=200))
    for line in Record(run).history:
        view.watch("round", {**line, "decisions": {}})
    heading, first = (
        next(text for text in out.getvalue().splitlines() if word in text) for word in (" round ", " 1 ")
    )
    assert first.rindex("0.625") + 5 == heading.index("Jain's index") + len("Jain's index")
    view.summary()
    assert any("Jain's index" in text and "0.875" in text for text in out.getvalue().splitlines())


def test_a_new_number_stands_in_reports_and_on_the_live_page(run: Path) -> None:
    state = LiveRun(run)
    state.read()
    assert [line["jain_index"] for line in state.rounds] == [0.625, 0.875]
    section = state.section()
    described_there = {"key": "jain_index", "title": "Jain's index", "unit": "share", "figure": True}
    assert described_there in section["columns"]
    (chart,) = [chart for chart in run_charts(run)[1] if chart.title == "Jain's index"]
    assert list(chart.figure["data"][0]["y"]) == [0.625, 0.875]


def test_a_new_number_stands_in_prometheus_and_trackers(run: Path) -> None:
    assert numbers(Record(run).history[1])["jain_index"] == 0.875
    exposition = pytest.importorskip("prometheus_client.exposition", reason="the extra metrics is not installed")
    from fedappeal.views.metrics.run_metrics import FolderMetrics

    text = exposition.generate_latest(FolderMetrics(lambda: run)).decode()
    assert "# HELP fedappeal_model_jain_index How alike the clients are served, 1: all alike" in text
    assert "fedappeal_model_jain_index 0.875" in text


def test_a_new_number_stands_in_comparisons_data_frames_and_the_reference(run: Path) -> None:
    (comparison,) = compare_runs(read_runs(run)[0])
    (measure,) = [measure for measure in comparison.measures if measure.key == "jain_index"]
    result = comparison.of(comparison.baseline, measure)
    assert result is not None
    assert result.interval.mean == 0.875
    assert any(line.split()[:3] == ["jain_index", "share", "higher"] for line in description("columns"))
    if find_spec("pandas") is not None:
        from fedappeal.api.run import Run

        assert list(Run(run).history["jain_index"]) == [0.625, 0.875]


def test_the_primary_metric_gives_its_columns_names_units_and_direction() -> None:
    error = Metric("mean-error", higher_is_better=False, low=0.0, high=float("inf"))
    by_key = {column.key: column for column in shown_in(MEASURE, error)}
    assert (by_key["mean_error"].title, by_key["mean_error"].unit) == ("test mean error", NUMBER)
    assert by_key["worst_decile_mean_error"].better == "lower"
    assert {column.unit for column in shown_in(TABLE) if "accuracy" in column.key} == {PERCENT}
    assert [column.title for column in shown_in(HEADLINE, error)] == ["GM-Appeal", "mean-error"]
    assert {column.title for column in shown_in(LINE, error)} >= {"GM-Appeal", "mean-error", "preferred", "s"}


@pytest.mark.parametrize(
    "names",
    [
        *(("f1", name) for name in ("worst-decile-f1", "lowest-f1", "preferred-f1", "adapted-f1", "central-f1")),
        *(("f1", name) for name in ("f1-clients", "unseen-f1", "f1", "unseen-loss")),
        ("a", "f1", "central-f1"),
    ],
)
def test_a_metric_in_the_column_of_another_number_is_refused(names: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError, match=f"^metric = '{names[-1]}' is not allowed: another number of the run"):
        check_names(Metric(names[0]), names[1:])
    check_names(Metric("lowest-f1"), ("f1", "preferred-f1"))


def test_each_view_knows_its_columns_and_each_column_is_described_once() -> None:
    keys = [column.key for column in COLUMNS]
    assert len(set(keys)) == len(keys)
    assert [row[0].replace("METRIC", "{metric}") for row in column_rows()] == keys
    for view in (LINE, TABLE, PAGE, GAUGE, MEASURE, HEADLINE):
        assert all(column.unit != OF_METRIC for column in shown_in(view))
    assert len({measure.key for measure in run_measures()}) == len(run_measures())
