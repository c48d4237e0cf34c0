"""Waiting for a run's end: by its status, which comes and goes with the SuperLink, and by the lines of its folder."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fedappeal.federation import remote
from fedappeal.federation.remote import RemoteSuperLink
from fedappeal.flower.control import ControlError, ListedRun
from fedappeal.record.follower import WatchedRun
from fedappeal.record.lines import EVENTS, HISTORY, PARTICIPATION
from fedappeal.runs.plan import RunPlan
from fedappeal.settings.config import RunConfig


def run_that(status: str, details: str = "") -> ListedRun:
    return ListedRun(7, status, "", "", "", "", "", details)


GONE = ControlError("the SuperLink at h:1 is not reachable: refused", unreachable=True)
RUNNING = run_that("running")


def listed(run_id: int, day: int, folder: str) -> ListedRun:
    return ListedRun(run_id, "running", "", "", f"2026-01-0{day}", "", folder)


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[ListedRun | ControlError]]:
    """What the SuperLink answers, one after another."""
    given: list[ListedRun | ControlError] = []

    def run_status(*_: object, **__: object) -> ListedRun:
        answer = given.pop(0)
        if isinstance(answer, ControlError):
            raise answer
        return answer

    monkeypatch.setattr(RemoteSuperLink, "run_status", run_status)
    monkeypatch.setattr(RemoteSuperLink, "runs", lambda _: [listed(6, 1, "a"), listed(7, 2, "a"), listed(9, 3, "b")])
    monkeypatch.setattr(remote, "_POLL", 0.0)
    monkeypatch.setattr(remote, "_STATUS_EVERY", 0.0)
    yield given
    assert not given


def follow(**options: Any) -> tuple[str, list[str]]:
    said: list[str] = []
    return RemoteSuperLink("h:1").follow(7, said.append, **options), said


def test_a_superlink_that_is_away_for_a_while_is_waited_for(answers: list[ListedRun | ControlError]) -> None:
    answers += [run_that("pending"), RUNNING, RUNNING, GONE, GONE, RUNNING]
    answers += [run_that("completed")]
    failure, said = follow()
    assert not failure
    assert said == ["pending", "running", f"{GONE}; trying again", "running"]


def test_a_run_that_the_superlink_continues_when_it_is_back_is_followed_there(
    answers: list[ListedRun | ControlError], monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = [listed(6, 1, "a"), listed(7, 2, "a"), listed(9, 3, "b")]
    monkeypatch.setattr(RemoteSuperLink, "runs", lambda _: [runs.append(listed(8, 4, "a")), runs][1])
    failed, completed = run_that("failed", "x"), run_that("completed")
    answers += [RUNNING, GONE, failed, RUNNING, completed]
    failure, said = follow()
    assert not failure
    assert said[-2:] == ["the SuperLink came back, and continues it as run 8", "running"]
    monkeypatch.setattr(remote, "_CONTINUED_WITHIN", 0.0)
    answers += [GONE, run_that("stopped"), RUNNING, completed]
    assert follow()[1][-2:] == said[-2:], "it was continued first, and then stopped, however long that took"
    answers += [RUNNING, run_that("stopped"), RUNNING, completed]
    assert follow() == ("", ["running", said[-2]]), "it was away and back between two looks"
    monkeypatch.setattr(RemoteSuperLink, "runs", lambda _: runs[:3])
    answers += [GONE, failed]
    assert follow()[0] == "the run failed: x", "nobody continued it in that time"


def test_one_that_stays_away_or_does_not_know_the_run_is_given_up(
    answers: list[ListedRun | ControlError],
) -> None:
    answers += [RUNNING, GONE]
    with pytest.raises(ControlError, match="not reachable"):
        follow(patience=-1.0)
    answers += [ControlError("the SuperLink at h:1 knows no run 7")]
    with pytest.raises(ControlError, match="knows no run 7"):
        follow()


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        (run_that("failed", "No heartbeat"), "the run failed: No heartbeat"),
        (run_that("failed"), "the run failed: the SuperLink says no more"),
        (run_that("stopped", "whatever"), "the run was stopped"),
    ],
)
def test_an_end_that_is_no_completion_has_a_reason(
    answers: list[ListedRun | ControlError], status: ListedRun, reason: str
) -> None:
    answers += [status]
    assert follow()[0] == reason


def test_the_folder_says_more_than_flower_about_a_failure(
    answers: list[ListedRun | ControlError], tmp_path: Path
) -> None:
    seen: list[tuple[str, Any]] = []
    follower = WatchedRun(tmp_path, lambda kind, line: seen.append((kind, line.get("event", line.get("round")))))

    def write(file: str, *lines: dict[str, Any]) -> None:
        with (tmp_path / file).open("a") as out:
            out.writelines(json.dumps(line) + "\n" for line in lines)

    write(EVENTS, {"event": "round", "round": 1})
    write(PARTICIPATION, {"round": 1, "client-id": "a", "decision": "joined"})
    write(HISTORY, {"round": 1})
    follower.read()
    write(EVENTS, {"event": "failed", "reason": "no clients came"})
    follower.read()
    follower.read()
    assert seen == [("event", "round"), ("round", 1), ("event", "failed")]
    answers += [run_that("failed", "ServerApp failed")]
    assert follow(follower=follower)[0] == "the run failed: no clients came"


def test_a_run_that_continues_is_shown_from_where_it_continues(tmp_path: Path) -> None:
    """Rounds 3 and 4 were run before, and are dropped and run again; a round that was kept is not shown twice."""
    run = RunPlan.of(RunConfig(rounds=6), tmp_path / "run").folder({})
    run.event("enrolled", client="a", enrolled=1)
    for number in (1, 2, 3, 4):
        run.event("round", round=number)
        run.append(HISTORY, {"round": number})
    run.event("interrupted")
    seen: list[tuple[str, Any]] = []
    follower = WatchedRun(run.path, lambda kind, line: seen.append((kind, line.get("round", line.get("event")))))
    follower.read()
    assert seen == []
    run.forget_after(2)
    follower.read()
    assert seen == [], "the run has not said yet that it has dropped what it runs again"
    run.event("resumed", round=2)
    run.event("round", round=3)
    follower.read()
    run.append(HISTORY, {"round": 3})
    run.event("finished", round=3, reason="")
    follower.read()
    assert seen == [("event", 2), ("event", 3), ("event", 3), ("round", 3)]
    assert follower.finished


def test_a_run_that_fails_before_it_continues_is_heard(tmp_path: Path) -> None:
    run = RunPlan.of(RunConfig(rounds=6), tmp_path / "run").folder({})
    run.event("enrolled", client="a", enrolled=1)
    run.event("round", round=1)
    run.event("finished", round=1, reason="")
    follower = WatchedRun(run.path, lambda kind, line: None)
    run.event("failed", reason="out of memory")
    follower.read()
    assert (follower.finished, follower.failed) == (False, "out of memory")
