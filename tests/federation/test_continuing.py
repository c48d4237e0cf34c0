"""Which runs a SuperLink continues when it comes back, and what it keeps of them until it has."""

import logging
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from fedappeal.federation import continuing
from fedappeal.federation.continuing import UnfinishedRuns, continue_unfinished
from fedappeal.federation.remote import NotDone, RemoteSuperLink
from fedappeal.flower.control import ListedRun
from fedappeal.flower.superlink.superlink_process import Ports
from fedappeal.record.folder import RunFolder
from fedappeal.record.lines import EVENTS
from fedappeal.settings.config import ConfigError
from tests.views.comparison.recorded import a_run


def test_what_is_to_continue_outlives_a_superlink_that_ends_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Flower has called these runs failed by the next start, and its database names others."""
    named = [[3, 2**63], [5], []]
    monkeypatch.setattr(continuing, "unfinished_runs", lambda database: named.pop(0))
    first, second = (UnfinishedRuns(tmp_path / "state.db") for _ in range(2))
    assert (first.ids, second.ids) == ([3, 2**63], [3, 2**63, 5])
    for run_id in (3, 2**63, 5):
        second.settled(run_id)
    assert UnfinishedRuns(tmp_path / "state.db").ids == []
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "state.db.continue").write_text("seven\n")
    with pytest.raises(ConfigError, match=r"state\.db\.continue' is not allowed: ids of runs; delete it"):
        UnfinishedRuns(tmp_path / "state.db")


def test_without_a_database_there_is_nothing_to_continue() -> None:
    with pytest.raises(ConfigError, match="resume is not allowed without a database: give --database FILE"):
        continue_unfinished(Ports.of(["--insecure"]))


def test_each_folder_continues_once_and_what_cannot_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    one, two = (a_run(tmp_path / name, []) for name in ("one", "two"))
    rows = [("failed", one), ("stopped", two), ("running", ""), ("running", tmp_path / "gone"), ("running", one)]
    runs = [ListedRun(k, row[0], "", "", f"2026-01-0{k}", "", str(row[1])) for k, row in enumerate(rows, 1)]
    stopped: list[int] = []
    commands: list[tuple[str, ...]] = []

    def submit(superlink: RemoteSuperLink, *command: str) -> str:
        commands.append(command)
        if len(commands) == 2:
            raise NotDone("no such package")
        return "9"

    monkeypatch.setattr(RemoteSuperLink, "runs", lambda superlink: runs)
    monkeypatch.setattr(RemoteSuperLink, "stop_run", lambda superlink, run_id: stopped.append(run_id))
    monkeypatch.setattr(RemoteSuperLink, "submit_detached", submit)
    monkeypatch.setattr(continuing, "unfinished_runs", lambda database: [1, 2, 3, 4, 5])
    continuing._continue(RemoteSuperLink("h:1"), unfinished := UnfinishedRuns(tmp_path / "state.db"), ["mine"])
    assert unfinished.ids == []
    assert commands == [("resume", str(one), "--allow", "mine")], "of run 1 the later run 5 has the folder"
    assert stopped == [1, 2, 4, 5], "Flower would wait for them"
    third, fourth, fifth = caplog.messages
    assert third == "run 3 was under way, and does not continue: it is not one of fedappeal's"
    gone = f"there is no folder '{tmp_path / 'gone'}', nor one of that name in '{tmp_path / 'runs'}': "
    gone += "`fedappeal resume` its copy, or submit it again"
    assert fourth == f"run 4 was under way, and does not continue: {gone}"
    assert fifth == "run 5 was under way when the SuperLink ended: it continues as run 9"

    runs[:] = [ListedRun(6, "running", "", "", "2026-01-06", "", str(two))]
    monkeypatch.setattr(continuing, "unfinished_runs", lambda database: [6])
    continuing._continue(RemoteSuperLink("h:1"), UnfinishedRuns(tmp_path / "state.db"), [])
    assert caplog.messages[-1] == "run 6 was under way, and does not continue: no such package"


def test_a_run_that_is_stopped_while_another_one_is_continued_stays_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = (a_run(tmp_path / name, []) for name in ("one", "two"))
    runs = [ListedRun(k, "running", "", "", f"2026-01-0{k}", "", str(path)) for k, path in enumerate((one, two), 1)]
    commands: list[tuple[str, ...]] = []

    def submit(superlink: RemoteSuperLink, *command: str) -> str:
        commands.append(command)
        runs[1] = replace(runs[1], status="stopped")
        return "9"

    monkeypatch.setattr(RemoteSuperLink, "runs", lambda superlink: list(runs))
    monkeypatch.setattr(RemoteSuperLink, "stop_run", lambda superlink, run_id: False)
    monkeypatch.setattr(RemoteSuperLink, "submit_detached", submit)
    monkeypatch.setattr(continuing, "unfinished_runs", lambda database: [1, 2])
    continuing._continue(RemoteSuperLink("h:1"), UnfinishedRuns(tmp_path / "state.db"), [])
    assert commands == [("resume", str(one))]


def test_a_folder_that_cannot_be_written_keeps_no_other_run_from_continuing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    one, two = (a_run(tmp_path / name, []) for name in ("one", "two"))
    (one / EVENTS).unlink(missing_ok=True)
    (one / EVENTS).mkdir()
    runs = [ListedRun(k, "running", "", "", f"2026-01-0{k}", "", str(path)) for k, path in enumerate((one, two), 1)]
    monkeypatch.setattr(RemoteSuperLink, "runs", lambda superlink: runs)
    monkeypatch.setattr(RemoteSuperLink, "stop_run", lambda superlink, run_id: False)
    monkeypatch.setattr(RemoteSuperLink, "submit_detached", lambda *words: "9")
    monkeypatch.setattr(continuing, "unfinished_runs", lambda database: [1, 2])
    monkeypatch.setattr(RunFolder, "mend", lambda folder: iter(()))
    continuing._continue(RemoteSuperLink("h:1"), unfinished := UnfinishedRuns(tmp_path / "state.db"), [])
    assert caplog.messages[-2].startswith("run 1 was under way, and does not continue: ")
    assert caplog.messages[-1].endswith("it continues as run 9")
    assert unfinished.ids == []


@pytest.mark.parametrize("original", ["there", "gone", "another run"])
@pytest.mark.parametrize("name", ["one", "sweep/seed-1"])
def test_a_restored_federation_continues_the_copy_of_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, original: str, name: str
) -> None:
    first, copy = (tmp_path / folder / "runs" / name for folder in ("fed", "restored"))
    shutil.copytree(a_run(first, []), copy)
    if original != "there":
        shutil.rmtree(first)
    if original == "another run":
        a_run(first, [])
    runs = [ListedRun(1, "running", "", "", "2026-01-01", "", str(first))]
    commands: list[tuple[str, ...]] = []
    monkeypatch.setattr(RemoteSuperLink, "runs", lambda superlink: runs)
    monkeypatch.setattr(RemoteSuperLink, "stop_run", lambda superlink, run_id: False)
    monkeypatch.setattr(RemoteSuperLink, "submit_detached", lambda superlink, *words: commands.append(words) or "9")
    monkeypatch.setattr(continuing, "unfinished_runs", lambda database: [1])
    continuing._continue(RemoteSuperLink("h:1"), UnfinishedRuns(tmp_path / "restored" / "state.db"), [])
    assert commands == [("resume", str(first if original == "another run" else copy))]
