"""Whether a serving client rests: looked up rarely."""

from datetime import datetime
from pathlib import Path

import pytest

from client.limits.guard import Guard
from client.limits.limits import LIMITS, Limits, write_limits
from client.limits.rest import Rest, Surroundings
from client.process.owner import PAUSED


class Clock:
    """A clock and an hour that a test sets."""

    def __init__(self) -> None:
        self.now, self.hour, self.looks = 0.0, 12, 0

    def local(self) -> datetime:
        self.looks += 1
        return datetime(2026, 11, 22, self.hour)


def rest(folder: Path, clock: Clock) -> Rest:
    return Rest(folder / PAUSED, Guard(folder), Surroundings(clock.local), lambda: clock.now)


def test_hours_hold_without_a_restart_and_after_one(tmp_path: Path) -> None:
    clock = Clock()
    one = rest(tmp_path, clock)
    assert one.why() == ""
    write_limits(tmp_path, Limits(hours="22-6"))
    clock.now = 1.0
    assert one.why() == "hours = 22-6"
    again = rest(tmp_path, clock)
    assert again.why() == "hours = 22-6"
    clock.now, clock.hour = 2.0, 23
    assert again.why() == ""


def test_it_looks_twice_a_second_but_sees_a_pause_at_once(tmp_path: Path) -> None:
    clock = Clock()
    one = rest(tmp_path, clock)
    for step in range(101):
        clock.now = step / 100
        one.why()
    assert clock.looks == 3
    (tmp_path / PAUSED).touch()
    assert one.why() == "nothing is worked on, as its owner said"


def test_a_damaged_file_of_limits_changes_nothing(tmp_path: Path) -> None:
    clock = Clock()
    write_limits(tmp_path, Limits(hours="22-6"))
    one = rest(tmp_path, clock)
    assert one.why() == "hours = 22-6"
    (tmp_path / LIMITS).write_text("{")
    clock.now, clock.hour = 1.0, 23
    assert one.why() == "hours = 22-6"


def test_a_days_traffic_is_kept(tmp_path: Path) -> None:
    write_limits(tmp_path, Limits(max_traffic=1))
    clock = Clock()
    Guard(tmp_path).moved(600_000)
    assert rest(tmp_path, clock).why() == ""
    Guard(tmp_path).moved(400_000)
    assert rest(tmp_path, clock).why() == "max-traffic = 1 MB is reached, until midnight UTC"


def test_a_full_disk_ends_nothing_and_loses_no_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_limits(tmp_path, Limits(max_traffic=1, hours="22-6"))
    guard, clock = Guard(tmp_path), Clock()

    def full(*given: object, **named: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("client.limits.answer_book.replace_file", full)
        guard.moved(600_000)
        assert rest(tmp_path, clock).why() == "hours = 22-6"
    guard.moved(400_000)
    clock.hour = 23
    assert rest(tmp_path, clock).why() == "max-traffic = 1 MB is reached, until midnight UTC"
