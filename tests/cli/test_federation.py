"""`fedappeal federation list` and `runs`: what they print of what a SuperLink knows."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from fedappeal.cli.main import main
from fedappeal.federation import own_superlink
from fedappeal.federation.remote import RemoteSuperLink
from fedappeal.flower.control import ListedRun, Node
from fedappeal.record.lines import EVENTS
from fedappeal.runs.plan import RunPlan
from fedappeal.settings.config import RunConfig

NODES = [
    Node("key-a414065dffe01fc9", 2**63, "a" * 70, "online", "2026-11-21T18:41:07+00:00", "2026-11-22T09:00:59+00:00"),
    Node("key-de50d54c268ec291", 7, "bob", "registered", "2026-11-20T18:41:07+00:00", ""),
]
RUNS = [
    ListedRun(
        2**64 - 1, "running", "maxfl", "digits", "2026-11-21T18:41:07+00:00", "", "/srv/federation/runs/" + "x" * 60
    ),
    ListedRun(5, "failed", "", "", "2026-11-21T19:41:07+00:00", "2026-11-21T19:42:07+00:00", ""),
]


@pytest.fixture(autouse=True)
def superlink(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RemoteSuperLink, "nodes", lambda superlink: NODES)
    monkeypatch.setattr(RemoteSuperLink, "runs", lambda superlink: RUNS)
    monkeypatch.setenv("COLUMNS", "40")


def printed(*arguments: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    monkeypatch.setattr(sys, "argv", ["fedappeal", "federation", *arguments, "--superlink", "127.0.0.1:8000"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code
    return capsys.readouterr().out


def test_nothing_is_cut_where_the_output_is_no_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _, first, second = printed("list", monkeypatch=monkeypatch, capsys=capsys).splitlines()
    assert first.split() == [
        "a" * 70,
        "key-a414065dffe01fc9",
        "online",
        *("2026-11-21", "18:41"),
        *("2026-11-22", "09:00"),
        str(2**63),
    ]
    assert second.split() == ["bob", "key-de50d54c268ec291", "registered", "2026-11-20", "18:41", "-", "7"]
    heading, first, second = printed("runs", "--insecure", monkeypatch=monkeypatch, capsys=capsys).splitlines()
    assert heading.split() == ["run", "id", "status", "strategy", "task", "started", "(UTC)", "folder"]
    assert first.split() == [
        str(2**64 - 1),
        "running",
        "maxfl",
        "digits",
        *("2026-11-21", "18:41"),
        "/srv/federation/runs/" + "x" * 60,
    ]
    assert second.split() == ["5", "failed", "-", "-", "2026-11-21", "19:41", "-"]


def test_what_other_users_called_their_runs_is_no_markup_and_no_escape_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = ListedRun(5, "failed", "[/]\x1b[31mx", "t" * 500, "2026-11-21T19:41:07+00:00", "", "[red]\x07")
    monkeypatch.setattr(RemoteSuperLink, "runs", lambda superlink: [run])
    _, line = printed("runs", monkeypatch=monkeypatch, capsys=capsys).splitlines()
    assert line.split() == ["5", "failed", "[/]?[31mx", "t" * 117 + "...", "2026-11-21", "19:41", "[red]?"]


def test_a_runs_folder_tells_how_many_examples_a_client_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = RunPlan.of(RunConfig(), tmp_path / "run").folder({})
    folder.event("enrolled", client="key-a414065dffe01fc9", examples=60)
    folder.event("enrolled", client="key-de50d54c268ec291")
    folder.event("enrolled", client="key-a414065dffe01fc9", examples=61)
    assert (folder.path / EVENTS).exists()
    given = ("list", "--run", str(folder.path))
    heading, first, second = printed(*given, monkeypatch=monkeypatch, capsys=capsys).splitlines()
    assert heading.split()[-3:] == ["examples", "node", "id"]
    assert first.split()[-2:] == ["61", str(2**63)]
    assert second.split()[-3:] == ["-", "-", "7"]
    listed = json.loads(printed(*given, "--json", monkeypatch=monkeypatch, capsys=capsys))
    assert [node.get("examples") for node in listed] == [61, None]
    assert [node["status"] for node in listed] == ["online", "registered"]
    for client in ("key-a414065dffe01fc9", "key-de50d54c268ec291"):
        folder.event("awaits-approval", client=client)
    listed = json.loads(printed(*given, "--json", monkeypatch=monkeypatch, capsys=capsys))
    assert [node["status"] for node in listed] == ["waiting", "registered"]


def test_machines_get_ids_as_text(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    listed = json.loads(printed("runs", "--json", monkeypatch=monkeypatch, capsys=capsys))
    assert [run["run-id"] for run in listed] == ["18446744073709551615", "5"]
    assert listed[1] == {
        "run-id": "5",
        "status": "failed",
        "strategy": "",
        "task": "",
        "started": "2026-11-21T19:41:07+00:00",
        "ended": "2026-11-21T19:42:07+00:00",
        "folder": "",
    }


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (["--insecure", "--host", "::1"], "starting the SuperLink with --insecure --host ::1; its log follows\n"),
        ([], "starting the SuperLink with Flower's default options; its log follows\n"),
        (["--help"], "Options of flower-superlink, which are taken too:\n\n"),
    ],
)
def test_a_superlink_says_at_once_what_it_starts(
    options: list[str], line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    printed_before: list[str] = []

    def run(given: list[str], resumes: bool, allow: Sequence[str]) -> None:
        printed_before.append(capsys.readouterr().out)

    monkeypatch.setattr(own_superlink, "run_own_superlink", run)
    monkeypatch.setattr(sys, "argv", ["fedappeal", "superlink", *options])
    monkeypatch.setenv("COLUMNS", "400")
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code
    (text,) = printed_before
    assert text.endswith(line)
    assert (text == line) is ("--help" not in options)
    assert ("--metrics-port" in text) is ("--help" in options)
