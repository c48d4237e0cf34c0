"""Limits by name: four that an owner can choose without reading all fields."""

from collections.abc import Mapping

from client.limits.limits import Limits
from fedappeal.settings.config import ConfigError, Scalar

NORMAL = "normal"
PRESETS: Mapping[str, tuple[str, Mapping[str, Scalar]]] = {
    "light": (
        "half a core, a minute a message, 2 GB of memory, 200 MB of models a day",
        {"max-cpu": 0.5, "max-seconds": 60, "max-memory": 2000, "max-traffic": 200, "max-rounds": 500},
    ),
    "at night on mains": ("as normal, from 22 to 6 and on mains power only", {"hours": "22-6", "mains-only": True}),
    NORMAL: ("all cores, ten minutes a message, 8 GB of memory, at any time", {}),
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
