"""A command that waits for a run says that it lives each time that the SuperLink has answered."""

import itertools
from typing import Any

import pytest

from fedappeal.federation import remote
from fedappeal.federation.remote import RemoteSuperLink
from fedappeal.flower.control import ControlError, ListedRun


def run_that(status: str, details: str = "") -> ListedRun:
    return ListedRun(7, status, "", "", "", "", "", details)


def test_an_answer_is_a_sign_of_life_and_silence_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter(
        [
            run_that("running"),
            ControlError("away", unreachable=True),
            run_that("completed"),
        ]
    )

    def status(*given: Any, **named: Any) -> ListedRun:
        answer = next(answers)
        if isinstance(answer, ControlError):
            raise answer
        return answer

    clock = itertools.count(step=10)
    monkeypatch.setattr(RemoteSuperLink, "run_status", status)
    monkeypatch.setattr(remote.time, "monotonic", lambda: float(next(clock)))
    monkeypatch.setattr(remote.time, "sleep", lambda seconds: None)
    alive: list[float] = []
    assert not RemoteSuperLink("127.0.0.1:1").follow(1, lambda text: None, on_answer=alive.append)
    assert alive == [1.0, 1.0]
