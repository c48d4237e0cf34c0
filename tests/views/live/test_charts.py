"""The charts of a live page: those of the report, made again no more often than they are worth."""

import json
from pathlib import Path
from typing import Any

import pytest

from fedappeal.record.decisions import pack_decisions
from fedappeal.record.folder import RunFolder
from fedappeal.record.lines import HISTORY, PARTICIPATION
from fedappeal.views.live import page as module
from fedappeal.views.live.page import Charts
from fedappeal.views.report.report import report_text, run_charts
from tests.views.comparison.recorded import a_run


def read(charts: Charts) -> dict[str, Any]:
    return json.loads(charts.text())  # type: ignore[no-any-return]


def test_they_are_the_reports(tmp_path: Path) -> None:
    path = a_run(tmp_path / "run", [{"accuracy": 0.5, "gm_appeal": 0.5}] * 3, strategy="maxfl", rounds=9)
    verdict, drawn = run_charts(path)
    told = read(Charts(lambda: path))
    assert told["verdict"] == verdict
    assert verdict.startswith("maxfl on digits, seed 0, has run 3 of 9 rounds.")
    assert [(chart["title"], chart["alt"]) for chart in told["charts"]] == [(c.title, c.alt) for c in drawn]
    assert len(drawn) >= 4
    assert all(chart["figure"]["data"] for chart in told["charts"])


def test_clients_have_their_names_in_charts_and_report(tmp_path: Path) -> None:
    path = a_run(tmp_path / "run", [{"accuracy": 0.5}])
    RunFolder.open(path).append(PARTICIPATION, pack_decisions(1, {"key-1": "joined", "key-2": "sat-out"}))
    told = read(Charts(lambda: path, names=lambda of: {"key-1": "anna <b>"}))
    assert "anna &lt;b&gt;" in (text := json.dumps(told["charts"]))
    assert "key-1" not in text
    assert "key-2" in text
    assert "anna" in report_text(path, {"key-1": "anna"})


def test_they_are_made_again_when_what_they_cost_is_a_small_share(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, now, made = a_run(tmp_path / "run", []), [0.0], []

    def costly(given: Path, names: object) -> tuple[str, list[Any]]:
        made.append(now[0])
        now[0] += 0.5
        return "a verdict", []

    monkeypatch.setattr(module, "run_charts", costly)
    over = False
    charts = Charts(lambda: path, lambda: over, lambda: now[0], lambda: now[0])
    assert read(charts)["note"]  # there is nothing to draw yet
    RunFolder.open(path).append(HISTORY, {"round": 1, "seconds": 1.0})
    now[0] = 5.0
    assert read(charts)["again"] == 166.7
    for _ in range(300):
        RunFolder.open(path).append(HISTORY, {"round": 2, "seconds": 1.0})
        now[0] += 1.0
        read(charts)
    assert made == [5.0, 172.5]  # 0.5 s are 0.3 % of 166.7 s; it is asked every second
    over = True
    read(charts)
    assert len(made) == 3


def test_they_are_not_made_again_while_nothing_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, made = a_run(tmp_path / "run", [{"accuracy": 0.5}]), []
    monkeypatch.setattr(module, "run_charts", lambda given, names: (made.append(given), ("", []))[1])
    now = [0.0]
    charts = Charts(lambda: path, clock=lambda: now[0])
    for _ in range(10):
        read(charts)
        now[0] += 1000.0
    assert made == [path]


def test_before_the_first_round_there_are_none(tmp_path: Path) -> None:
    for path in (None, a_run(tmp_path / "run", [])):
        told = read(Charts(lambda path=path: path))  # type: ignore[misc]
        assert (told["charts"], told["note"]) == ([], "charts come with the first finished round")
