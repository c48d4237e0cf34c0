"""Waiting for a run's end: by its status, which comes and goes with the SuperLink, and by the lines of its folder."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fedappeal.federation import remote
from fedappeal.federation.follower import Follower
from fedappeal.federation.remote import Ended, RemoteSuperLink
from fedappeal.flower.control import ControlError, RunStatus
from server.run_folder import EVENTS, HISTORY, PARTICIPATION

GONE = ControlError("the SuperLink at h:1 is not reachable: refused", unreachable=True)
RUNNING = RunStatus("running", "", "")


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[RunStatus | ControlError]]:
    """What the SuperLink answers, one after another."""
    given: list[RunStatus | ControlError] = []

    def run_status(*_: object, **__: object) -> RunStatus:
        answer = given.pop(0)
        if isinstance(answer, ControlError):
            raise answer
        return answer

    monkeypatch.setattr(remote, "run_status", run_status)
    monkeypatch.setattr(remote, "_POLL", 0.0)
    monkeypatch.setattr(remote, "_STATUS_EVERY", 0.0)
    yield given
    assert not given


def follow(**options: Any) -> tuple[Ended, list[str]]:
    said: list[str] = []
    return RemoteSuperLink("h:1").follow(7, said.append, **options), said


def test_a_superlink_that_is_away_for_a_while_is_waited_for(answers: list[RunStatus | ControlError]) -> None:
    answers += [RunStatus("pending", "", ""), RUNNING, RUNNING, GONE, GONE, RUNNING]
    answers += [RunStatus("finished", "completed", "")]
    ended, said = follow()
    assert ended == Ended(True, "")
    assert said == ["pending", "running", f"{GONE}; trying again", "running"]


def test_one_that_stays_away_or_does_not_know_the_run_is_given_up(answers: list[RunStatus | ControlError]) -> None:
    answers += [RUNNING, GONE]
    with pytest.raises(ControlError, match="not reachable"):
        follow(patience=-1.0)
    answers += [ControlError("the SuperLink at h:1 knows no run 7")]
    with pytest.raises(ControlError, match="knows no run 7"):
        follow()


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        (RunStatus("finished", "failed", "No heartbeat"), "the run failed: No heartbeat"),
        (RunStatus("finished", "failed", ""), "the run failed: the SuperLink says no more"),
        (RunStatus("finished", "stopped", "whatever"), "the run was stopped"),
    ],
)
def test_an_end_that_is_no_completion_has_a_reason(
    answers: list[RunStatus | ControlError], status: RunStatus, reason: str
) -> None:
    answers += [status]
    assert follow()[0] == Ended(False, reason)


def test_the_folder_says_more_than_flower_about_a_failure(
    answers: list[RunStatus | ControlError], tmp_path: Path
) -> None:
    seen: list[tuple[str, Any]] = []
    follower = Follower(tmp_path, lambda kind, line: seen.append((kind, line.get("event", line.get("round")))))

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
    answers += [RunStatus("finished", "failed", "ServerApp failed")]
    assert follow(follower=follower)[0] == Ended(False, "the run failed: no clients came")
