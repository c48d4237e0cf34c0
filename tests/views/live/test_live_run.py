"""A run as its folder tells it: numbers of the history, an estimate worked out by hand, a continuation."""

from pathlib import Path

import pytest

from fedappeal.record.decisions import pack_decisions
from fedappeal.record.folder import RunFolder
from fedappeal.record.lines import EVENTS, HISTORY, PARTICIPATION
from fedappeal.record.reader import Record
from fedappeal.views.live.live_run import ESTIMATED_FROM, MOST_ROUNDS, LiveRun, seconds_left
from strategies.rounds.exchange.exchange import NO_ANSWER
from tests.views.comparison.recorded import a_run

LINES = [
    {"accuracy": 0.5, "gm_appeal": 0.25, "joined": 2, "sat_out": 1, "seconds": 4.0},
    {"accuracy": 0.75, "gm_appeal": 0.5, "joined": 3, "sat_out": 0, "seconds": 2.0, "served": 0.5},
]


def test_the_numbers_are_those_of_the_history(tmp_path: Path) -> None:
    path = a_run(tmp_path / "run", LINES, strategy="maxfl", rounds=10)
    state = LiveRun(path)
    assert not state.read()
    fresh = state.rounds
    written = Record(path).history
    assert [{key: line[key] for key in shown} for line, shown in zip(written, fresh, strict=True)] == fresh
    assert [set(shown) >= {"round", "joined", "sat_out", "gm_appeal", "accuracy", "seconds"} for shown in fresh]
    assert [line.get("served") for line in fresh] == [None, 0.5]
    section = state.section()
    assert (section["title"], section["last"], section["total"]) == ("maxfl on digits", 2, 10)
    assert section["sums"]["joined"] == 5
    assert section["sums"]["bytes_up"] == 1_000_000
    assert section["latest"]["accuracy"] == 0.75
    assert section["left"] == 8 * 3.0  # eight rounds of (4 + 2) / 2 s
    assert section["metric"] == {"column": "accuracy", "name": "accuracy", "share": True}


def test_the_time_left_is_the_mean_of_the_latest_rounds() -> None:
    assert seconds_left([], 5) is None
    assert seconds_left([1.0, 2.0], 5) == 7.5
    assert seconds_left([100.0, *[2.0] * ESTIMATED_FROM], 3) == 6.0
    assert seconds_left([1.0], -2) == 0.0


def test_events_say_how_it_stands(tmp_path: Path) -> None:
    path = a_run(tmp_path / "run", LINES, rounds=3)
    folder, state = RunFolder.open(path), LiveRun(path)
    for kind, facts, expected in (
        ("enrolled", {"client": "a", "node": "1"}, "waiting"),
        ("round", {"round": 3}, "running"),
        ("interrupted", {}, "interrupted"),
        ("resumed", {"round": 2}, "waiting"),
        ("round", {"round": 3}, "running"),
        ("failed", {"reason": "no client fits"}, "failed"),
        ("finished", {"round": 3, "reason": ""}, "finished"),
    ):
        with folder.alone():  # its process is there
            folder.event(kind, **facts)
            state.read()
            assert state.state == expected
            section = state.section()
            assert (section["left"] is None) == (expected not in ("waiting", "running"))
            assert section["reason"] == ("no client fits" if kind == "failed" else "")


def test_failures_are_counted_and_told_of_the_client(tmp_path: Path) -> None:
    path = a_run(tmp_path / "run", [])
    folder, state = RunFolder.open(path), LiveRun(path)
    flowers = "Error: Message Unavailable - The requested message could not be found in the database"
    for number, reason in ((1, flowers), (2, NO_ANSWER)):
        folder.append(PARTICIPATION, pack_decisions(number, {"a": "joined", "b": "failed"}))
        folder.append(HISTORY, {"round": number, "seconds": 1.0, "failures": {"b": reason}})
    state.read()
    assert state.failures() == [{"reason": NO_ANSWER, "times": 2}]
    rows = {row["client"]: (row["state"], row["why"]) for row in state.clients.section()["rows"]}
    assert rows == {"a": ("joined", ""), "b": ("silent", NO_ANSWER)}


def test_a_continued_run_is_read_anew_without_the_rounds_that_it_runs_again(tmp_path: Path) -> None:
    path = a_run(tmp_path / "run", LINES, rounds=3)
    folder, state = RunFolder.open(path), LiveRun(path)
    folder.append(PARTICIPATION, *(pack_decisions(n, {"a": "joined"}) for n in (1, 2)))
    folder.event("round", round=1)
    assert not state.read()
    assert len(state.rounds) == 2
    folder.forget_after(1)
    folder.event("resumed", round=1)
    assert state.read()
    assert [line["round"] for line in state.rounds] == [1]
    assert state.section()["sums"]["joined"] == 2
    assert state.clients.section()["rows"][0]["recent"] == ["joined"]


def test_a_client_that_joins_a_mandatory_round_joins_on_request(tmp_path: Path) -> None:
    path = a_run(tmp_path / "run", [{**LINES[0], "mandatory": True}, {**LINES[0], "mandatory": False}], rounds=3)
    RunFolder.open(path).append(PARTICIPATION, *(pack_decisions(n, {"a": "joined", "b": "sat-out"}) for n in (1, 2)))
    state = LiveRun(path)
    state.read()
    recent = {row["client"]: row["recent"] for row in state.clients.section()["rows"]}
    assert recent == {"a": ["on-request", "joined"], "b": ["sat-out", "sat-out"]}


def test_a_long_run_is_listed_by_its_latest_rounds(tmp_path: Path) -> None:
    path = a_run(tmp_path / "run", [{"accuracy": 0.5}] * (MOST_ROUNDS + 50))
    state = LiveRun(path)
    state.read()
    assert [line["round"] for line in state.rounds] == list(range(51, MOST_ROUNDS + 51))
    assert state.section()["sums"]["joined"] == MOST_ROUNDS + 50


@pytest.mark.parametrize("value", ["NaN", "Infinity", "1e400", '"<b>"', "[1]", "null", "-1e301"])
def test_what_is_no_figure_is_not_shown(tmp_path: Path, value: str) -> None:
    path = a_run(tmp_path / "run", [])
    (path / HISTORY).write_text(f'{{"round": 1, "accuracy": {value}, "seconds": {value}, "joined": 1}}\n')
    (path / EVENTS).write_text(f'{{"event": "round", "round": {value}, "time": {value}}}\n')
    state = LiveRun(path)
    state.read()
    [line] = state.rounds
    assert line == {"round": 1, "joined": 1}
    section = state.section()
    assert (section["sums"]["seconds"], section["round"], section["since"]) == (0, 0, 0)


def test_a_folder_that_is_not_there_yet_is_a_run_that_waits(tmp_path: Path) -> None:
    state = LiveRun(tmp_path / "later")
    assert (state.read(), state.rounds) == (False, [])
    assert (state.section()["state"], state.section()["total"], state.section()["left"]) == ("waiting", 0, None)


def test_what_is_awaited_before_the_first_round_is_said(tmp_path: Path) -> None:
    path = a_run(tmp_path / "run", [], clients=3)
    folder, state = RunFolder.open(path), LiveRun(path)
    said = []
    for event in (
        {},
        {"kind": "enrolled", "enrolled": 1},
        {"kind": "waiting", "enrolled": 1, "wanted": 3, "silent": ["7", "8"]},
        {"kind": "enrolled", "enrolled": 3},
    ):
        if event:
            folder.event(**event)  # type: ignore[arg-type]
        state.read()
        said.append(state.section()["awaited"])
    more = "; 2 called that have not answered yet"
    assert said == [
        "its processes are starting", "1 of 3 have answered", f"1 of 3 have answered{more}", "3 of 3 have answered"
    ]  # fmt: skip
