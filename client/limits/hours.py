"""Hours of the day, as an owner writes them: ``22-6``, ``12:30-13,18-8``."""

import re
from datetime import time

_WINDOW = re.compile(r"([01]?\d|2[0-4])(?::([0-5]\d))?-([01]?\d|2[0-4])(?::([0-5]\d))?")
_MOST = 24
_DAY = 24 * 60


def checked_hours(text: str) -> str:
    """Return hours as they were given.

    Raises:
        ValueError: they are of another form.
    """
    _windows(text)
    return text


def within(text: str, now: time) -> bool:
    """Return whether a time of the day lies within hours; within none given, always.

    A window ends before its last minute begins; one whose end is not after its start goes past midnight.
    """
    windows, minute = _windows(text), 60 * now.hour + now.minute
    return not windows or any(
        start <= minute < end if start < end else minute >= start or minute < end for start, end in windows
    )


def _windows(text: str) -> list[tuple[int, int]]:
    """Return the windows, in minutes since midnight."""
    parts = text.split(",") if text else []
    if len(parts) > _MOST:
        raise ValueError(f"at most {_MOST} windows")
    windows = []
    for part in parts:
        match = _WINDOW.fullmatch(part)
        start, end = (60 * int(match[n]) + int(match[n + 1] or 0) for n in (1, 3)) if match else (-1, -1)
        if not ((0 <= start < _DAY and 0 < end <= _DAY) or (0 <= start < _DAY and end == 0)) or start == end:
            raise ValueError("windows of hours by commas, such as 22-6 or 12:30-13,18-8; two ends that differ")
        windows.append((start, end))
    return windows
