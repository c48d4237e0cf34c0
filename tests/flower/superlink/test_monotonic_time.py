"""Flower's `now` counts on in a SuperLink and what it starts, whatever the machine's clock is set to."""

import os
import time
from datetime import UTC, datetime

import pytest
from flwr.supercore import date

from fedappeal.flower.superlink.monotonic_time import DIFFERENCE, begin_monotonic_time, keep_monotonic_time
from fedappeal.system.clock import CLOCK, SteadyClock


@pytest.fixture(autouse=True)
def _put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(date, "datetime", date.datetime)
    monkeypatch.delitem(vars(CLOCK), "difference", raising=False)
    monkeypatch.delenv(DIFFERENCE, raising=False)


def test_flowers_time_stays_where_the_clock_is_set_and_is_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    begin_monotonic_time()
    assert abs(date.now().timestamp() - time.time()) < 5
    assert date.now().tzinfo is UTC
    monkeypatch.setattr(CLOCK, "_machine", lambda: time.time() + 3600)
    assert abs(date.now().timestamp() - time.time()) < 5
    CLOCK.read_again()  # another process, which begins after the jump
    assert date.now().timestamp() - time.time() > 3500
    keep_monotonic_time()
    assert abs(date.now().timestamp() - time.time()) < 5
    assert date.isoformat8601_utc(datetime(2026, 1, 2, tzinfo=UTC)) == "2026-01-02T00:00:00Z"


def test_a_process_of_another_superlink_keeps_the_machines_time() -> None:
    before = date.datetime
    keep_monotonic_time()
    assert date.datetime is before
    assert DIFFERENCE not in os.environ


def test_the_difference_is_read_once() -> None:
    times = iter((1000.0, 2000.0))
    clock = SteadyClock(lambda: next(times), lambda: 1.0)
    assert (clock.difference, clock.difference) == (999.0, 999.0)
