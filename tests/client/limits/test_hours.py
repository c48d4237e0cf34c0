"""Hours of the day, by hand."""

from datetime import time

import pytest

from client.limits.limits import checked_hours, within


@pytest.mark.parametrize(
    ("hours", "inside", "outside"),
    [
        ("", ["00:00", "23:59"], []),
        ("9-17", ["09:00", "16:59"], ["08:59", "17:00"]),
        ("22-6", ["22:00", "23:59", "00:00", "05:59"], ["06:00", "21:59"]),
        ("12:30-13,18-8", ["12:30", "18:00", "07:59"], ["12:29", "13:00", "08:00"]),
        ("18-24", ["18:00", "23:59"], ["00:00"]),
        ("18-0", ["18:00", "23:59"], ["00:00"]),
        ("0-24", ["00:00", "23:59"], []),
    ],
)
def test_a_time_lies_within_hours_or_not(hours: str, inside: list[str], outside: list[str]) -> None:
    assert checked_hours(hours) == hours
    assert all(within(hours, time.fromisoformat(each)) for each in inside)
    assert not any(within(hours, time.fromisoformat(each)) for each in outside)


@pytest.mark.parametrize("hours", ["22", "22-25", "9-9", "9:60-10", "9-17,", "a-b", "24-6", "-1-5", "24:30-3"])
def test_hours_of_another_form_are_refused(hours: str) -> None:
    with pytest.raises(ValueError, match="windows of hours by commas"):
        checked_hours(hours)


def test_windows_are_bounded() -> None:
    with pytest.raises(ValueError, match="at most 24 windows"):
        checked_hours(",".join(["1-2"] * 25))
