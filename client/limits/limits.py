"""The owner's limits on what a server may take of a device: when, and how much.

The limits stand in the file ``limits.json`` of the client's state folder, which `fedappeal client limits` shows and
changes; `fedappeal client --limits` (the node setting ``limits``) goes before it. A running client reads a changed
file before its next message.
"""

import json
import re
from collections.abc import Mapping
from datetime import time
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Self

from pydantic import AfterValidator

from fedappeal.protocol.foreign_text import parse_json
from fedappeal.settings.config import ConfigError, Count, CountOrZero, NonNegative, Scalar, Settings, scalar
from fedappeal.settings.model import fact, setting
from fedappeal.system.files import replace_file
from fedappeal.system.locks import changing

LIMITS = "limits.json"
"""The file's name in the state folder."""
OFF = "off"
"""In place of settings: no limit at all."""
MEGABYTE = 10**6
_WINDOW = re.compile(r"([01]?\d|2[0-4])(?::([0-5]\d))?-([01]?\d|2[0-4])(?::([0-5]\d))?")
_MOST_WINDOWS = 24
_DAY_MINUTES = 24 * 60


class LimitReached(ConfigError):
    """A request beyond the owner's limits; the message names the limit."""


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
    if len(parts) > _MOST_WINDOWS:
        raise ValueError(f"at most {_MOST_WINDOWS} windows")
    windows = []
    for part in parts:
        match = _WINDOW.fullmatch(part)
        start, end = (60 * int(match[n]) + int(match[n + 1] or 0) for n in (1, 3)) if match else (-1, -1)
        if not (0 <= start < _DAY_MINUTES and end <= _DAY_MINUTES) or start == end:
            raise ValueError("windows of hours by commas, such as 22-6 or 12:30-13,18-8; two ends that differ")
        windows.append((start, end))
    return windows


class Limits(Settings):
    """An owner's limits.

    0 of a limit that is called ``max`` means no limit.
    """

    max_steps: CountOrZero = setting(10_000, unit="gradients")
    """most in one local training, tuning or warm-up"""
    min_steps: Count = setting(1, unit="gradients")
    """fewest behind a model that is sent"""
    min_batch: Count = setting(8, unit="examples")
    """fewest that a run may put behind one gradient of what is sent"""
    max_seconds: NonNegative = setting(600.0, unit="seconds")
    """longest work on one message, whose deadline may come first"""
    max_memory: NonNegative = setting(8000.0, unit="MB")
    """most that runs may take together"""
    max_model: NonNegative = setting(1000.0, unit="MB")
    """largest message, with its models"""
    max_state: NonNegative = setting(4000.0, unit="MB")
    """largest state on the disk"""
    max_evaluations: CountOrZero = setting(3, unit="models")
    """most that are evaluated under one round number of a run"""
    max_rounds: CountOrZero = setting(5000, unit="rounds a day")
    """most that are answered, of all runs together"""
    max_runs: CountOrZero = setting(100, unit="runs a day")
    """most that begin; one that comes with another model is another"""
    max_cpu: NonNegative = setting(0.0, unit="cores")
    """most that work takes, on the average of a message; 0.5: half of one"""
    max_bandwidth: NonNegative = setting(0.0, unit="MB/s")
    """most that is sent and fetched, on the average of a message"""
    max_traffic: NonNegative = setting(0.0, unit="MB a day")
    """of models, sent and fetched, after which the client rests"""
    hours: Annotated[str, AfterValidator(checked_hours)] = setting("", unit="local time")
    """when the client takes part: 22-6, or 12:30-13,18-8; empty: always"""
    mains_only: bool = False
    """whether it rests on battery"""
    unmetered_only: bool = False
    """whether it rests in a network that costs by what is sent"""

    @classmethod
    def off(cls) -> Self:
        """Return no limits."""
        least = {name: int(name.startswith("min_")) for name in cls.model_fields if name[:4] in ("min_", "max_")}
        return cls.model_validate(least)

    @property
    def counts_answers(self) -> bool:
        """Whether questions, rounds or runs are counted."""
        return bool(self.max_evaluations or self.max_rounds or self.max_runs)

    def with_text(self, text: str) -> Self:
        """Return these limits with those of a text: ``KEY=VALUE`` separated by spaces, or ``off``.

        Raises:
            ConfigError: for another form, an unknown limit or a value that is not allowed.
        """
        if text.strip() == OFF:
            return type(self).off()
        values: dict[str, object] = {}
        for part in text.split():
            key, equals, value = part.partition("=")
            if not (equals and key and value):
                raise ConfigError(f"limits = '{text}' is not allowed: KEY=VALUE separated by spaces, or '{OFF}'")
            values[key.replace("_", "-")] = scalar(value)
        return self.with_values(values) if values else self

    def with_values(self, values: Mapping[str, object]) -> Self:
        """Return these limits with some replaced; errors as in `parse`."""
        return type(self).parse({**self.as_config(), **values})


def read_limits(folder: Path) -> Limits:
    """Return the limits of a state folder; the defaults, where none were set.

    Raises:
        ConfigError: if the file cannot be read; one line that names it.
    """
    path = folder / LIMITS
    try:
        state = path.stat()
        return _read(path, state.st_ctime_ns, state.st_size, state.st_ino)
    except FileNotFoundError:
        return Limits()
    except OSError as error:
        raise _unreadable(path, error) from None


@lru_cache(maxsize=4)
def _read(path: Path, changed: int, size: int, inode: int) -> Limits:
    """Return the limits of a file; a client looks twice a second. `changed` is the time that no program can set."""
    try:
        content = parse_json(path.read_bytes())
    except ValueError as error:
        raise _unreadable(path, error) from None
    if not isinstance(content, dict):
        raise ConfigError(f"file '{path}' cannot be read: it is no JSON object of limits")
    try:
        return Limits.parse(content)
    except ConfigError as error:
        raise ConfigError(f"file '{path}' is not allowed: {error}") from None


def _unreadable(path: Path, error: Exception) -> ConfigError:
    return ConfigError(f"file '{path}' cannot be read: {error} (`fedappeal client limits --reset`)")


def write_limits(folder: Path, limits: Limits) -> None:
    """Keep limits in a state folder; of those that are as by default nothing is written."""
    changed = limits.model_dump(by_alias=True, exclude_defaults=True)
    with changing(folder):
        replace_file(folder / LIMITS, (json.dumps(changed, indent=1) + "\n").encode(), mode=0o600)


def reset_limits(folder: Path) -> None:
    """Forget what was set: the defaults count; ConfigError where the file cannot be deleted."""
    path = folder / LIMITS
    try:
        with changing(folder):
            path.unlink(missing_ok=True)
    except OSError as error:
        raise ConfigError(f"file '{path}' cannot be deleted: {error.strerror}") from None


def describe_limits(limits: Limits) -> list[str]:
    """Return a line a limit: its value, unit, meaning, and the default where it differs."""
    values = limits.as_config()
    lines = []
    for key, field in Limits.described().items():
        other = "" if values[key] == field.default else f" (default {_text(key, field.default)})"
        lines.append(f"{key:<16} {_text(key, values[key]):>8} {fact(field, 'unit'):<12} {field.description}{other}")
    return lines


def shown_default(value: Scalar) -> str:
    """Return a limit's default as help and documentation show it."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return value or "always" if isinstance(value, str) else f"{value:g}"


def _text(key: str, value: Scalar) -> str:
    if isinstance(value, bool | str):
        return shown_default(value)
    return "none" if key.startswith("max-") and not value else f"{value:,.10g}"


PRESETS: Mapping[str, tuple[str, Mapping[str, Scalar]]] = {
    "light": (
        "half a core, a minute a message, 2 GB of memory, 200 MB of models a day",
        {"max-cpu": 0.5, "max-seconds": 60, "max-memory": 2000, "max-traffic": 200, "max-rounds": 500},
    ),
    "at night on mains": ("as normal, from 22 to 6 and on mains power only", {"hours": "22-6", "mains-only": True}),
    "normal": ("all cores, ten minutes a message, 8 GB of memory, at any time", {}),
    "as much as possible": (
        "no limit on steps, time, memory, rounds and runs; what bounds the knowledge of your data stays",
        {"max-steps": 0, "max-seconds": 0, "max-memory": 0, "max-rounds": 0, "max-runs": 0},
    ),
}
"""By name: what it costs the device, and what differs from the defaults."""


def preset(name: object) -> Limits:
    """Return the limits of a name; all that it does not set is as by default.

    Raises:
        ConfigError: there is none of that name.
    """
    if not isinstance(name, str) or name not in PRESETS:
        raise ConfigError(f"preset = {str(name)[:80]!r} is not allowed: {', '.join(PRESETS)}")
    return Limits().with_values(PRESETS[name][1])


def preset_of(limits: Limits) -> str:
    """Return the name of the preset that limits equal.

    Empty where they equal none.
    """
    return next((name for name in PRESETS if preset(name) == limits), "")
