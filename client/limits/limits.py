"""What a device's owner lets a server take of it, in one model: when, and how much.

The limits stand in the file ``limits.json`` of the client's state folder, which `fedappeal client limits` shows and
changes; `fedappeal client --limits` (the node setting ``limits``) goes before it. A running client reads a changed
file before its next message.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import AfterValidator, Field

from client.limits.hours import checked_hours
from fedappeal.protocol.foreign_text import parse_json
from fedappeal.settings.config import ConfigError, Count, CountOrZero, NonNegative, Scalar, Settings, scalar
from fedappeal.system.files import replace_file

LIMITS = "limits.json"
"""The file's name in the state folder."""
OFF = "off"
"""In place of settings: no limit at all."""
MEGABYTE = 10**6


class LimitReached(ConfigError):
    """What a server asked for is more than the owner of the device allows; the message names the limit."""


def _limit(default: float | str, unit: str, description: str) -> Any:
    return Field(default, description=description, json_schema_extra={"unit": unit})


class Limits(Settings):
    """An owner's limits; 0 of one that is called ``max`` is none."""

    max_steps: CountOrZero = _limit(10_000, "gradients", "most in one local training, tuning or warm-up")
    min_steps: Count = _limit(1, "gradients", "fewest behind a model that is sent")
    min_batch: Count = _limit(8, "examples", "fewest that a run may put behind one gradient of what is sent")
    max_seconds: NonNegative = _limit(600.0, "seconds", "longest work on one message, whose deadline may come first")
    max_memory: NonNegative = _limit(8000.0, "MB", "most that the client's process may hold")
    max_model: NonNegative = _limit(1000.0, "MB", "largest message, with its models")
    max_state: NonNegative = _limit(4000.0, "MB", "largest state on the disk")
    max_evaluations: CountOrZero = _limit(3, "models", "most that are evaluated under one round number of a run")
    max_rounds: CountOrZero = _limit(5000, "rounds a day", "most that are answered, of all runs together")
    max_runs: CountOrZero = _limit(100, "runs a day", "most that begin; one that comes with another model is another")
    max_cpu: NonNegative = _limit(0.0, "cores", "most that work takes, on the average of a message; 0.5: half of one")
    max_bandwidth: NonNegative = _limit(0.0, "MB/s", "most that is sent and fetched, on the average of a message")
    max_traffic: NonNegative = _limit(0.0, "MB a day", "of models, sent and fetched, after which the client rests")
    hours: Annotated[str, AfterValidator(checked_hours)] = _limit(
        "", "local time", "when the client takes part: 22-6, or 12:30-13,18-8; empty: always"
    )
    mains_only: bool = _limit(False, "", "whether it rests on battery")
    unmetered_only: bool = _limit(False, "", "whether it rests in a network that costs by what is sent")

    @classmethod
    def off(cls) -> Self:
        """Return no limits."""
        least = {name: int(name.startswith("min_")) for name in cls.model_fields if name[:4] in ("min_", "max_")}
        return cls.model_validate(least)

    @property
    def counts_answers(self) -> bool:
        """Whether questions, rounds or runs are counted."""
        return bool(self.max_evaluations or self.max_rounds or self.max_runs)

    @classmethod
    def units(cls) -> dict[str, str]:
        """Return each limit's unit, by kebab-case key."""
        units: dict[str, str] = {}
        for key, field in zip(cls.keys(), cls.model_fields.values(), strict=True):
            extra = field.json_schema_extra
            units[key] = str(extra["unit"]) if isinstance(extra, dict) else ""
        return units

    def with_text(self, text: str) -> Self:
        """Return these limits with those of a text: ``KEY=VALUE`` separated by spaces, or ``off``.

        Raises:
            ConfigError: for another form, an unknown limit or a value that is not allowed.
        """
        if text.strip() == OFF:
            return type(self).off()
        given: dict[str, object] = {}
        for part in text.split():
            key, equals, value = part.partition("=")
            if not (equals and key and value):
                raise ConfigError(f"limits = '{text}' is not allowed: KEY=VALUE separated by spaces, or '{OFF}'")
            given[key.replace("_", "-")] = scalar(value)
        return self.with_values(given)

    def with_values(self, given: Mapping[str, object]) -> Self:
        """Return these limits with some replaced; errors as in `parse`."""
        return type(self).parse({**self.as_config(), **given})


def read_limits(folder: Path) -> Limits:
    """Return the limits of a state folder; the defaults, where none were set.

    Raises:
        ConfigError: if the file cannot be read; one line that names it.
    """
    path = folder / LIMITS
    try:
        content = parse_json(path.read_bytes())
    except FileNotFoundError:
        return Limits()
    except (OSError, ValueError) as error:
        raise ConfigError(f"file '{path}' cannot be read: {error} (`fedappeal client limits --reset`)") from None
    if not isinstance(content, dict):
        raise ConfigError(f"file '{path}' cannot be read: it is no JSON object of limits")
    try:
        return Limits.parse(content)
    except ConfigError as error:
        raise ConfigError(f"file '{path}' is not allowed: {error}") from None


def write_limits(folder: Path, limits: Limits) -> None:
    """Keep limits in a state folder; of those that are as by default nothing is written."""
    given, default = limits.as_config(), Limits().as_config()
    own = {key: value for key, value in given.items() if value != default[key]}
    replace_file(folder / LIMITS, (json.dumps(own, indent=1) + "\n").encode(), mode=0o600)


def reset_limits(folder: Path) -> None:
    """Forget what was set: the defaults count."""
    (folder / LIMITS).unlink(missing_ok=True)


def describe_limits(limits: Limits) -> list[str]:
    """Return a line a limit: its value, unit, meaning, and the default where it differs."""
    values, default, units = limits.as_config(), Limits().as_config(), Limits.units()
    lines = []
    for (key, value), field in zip(values.items(), Limits.model_fields.values(), strict=True):
        other = "" if value == default[key] else f" (default {_shown(key, default[key])})"
        lines.append(f"{key:<16} {_shown(key, value):>8} {units[key]:<12} {field.description}{other}")
    return lines


def _shown(key: str, value: Scalar) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        return value or "always"
    return "none" if key.startswith("max-") and not value else f"{value:,.10g}"
