"""When a client rests: the owner's limits, and what the device says.

The limits are on hours, traffic, power and network.
"""

import shutil
import subprocess  # nosec B404 # our command, no shell
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from client.limits.guard import Guard
from client.limits.limits import MEGABYTE, Limits, within
from client.state.signs import OWNERS_PAUSE
from fedappeal.settings.config import ConfigError

_EVERY = 0.5
_NETWORK_EVERY = 30.0
"""Seconds for which an answer about the network counts: each is a process of its own."""
_UNKNOWN_POWER = "this machine does not say whether it is on mains power (Linux: /sys/class/power_supply)"
_UNKNOWN_NETWORK = "this machine does not say whether its network is metered (Linux: NetworkManager, by busctl)"
SUPPLIES = Path("/sys/class/power_supply")
_ASK = ("org.freedesktop.NetworkManager", "/org/freedesktop/NetworkManager", "org.freedesktop.NetworkManager")
_METERED = {1: True, 2: False, 3: True, 4: False}
"""NetworkManager's NMMetered: yes, no, guessed yes, guessed no; 0 is unknown."""
_PATIENCE = 3.0
_LONGEST_LINE = 200


def on_mains(supplies: Path = SUPPLIES) -> bool | None:
    """Return whether the device is on mains power.

    None where it does not say, as on other systems than Linux. A device without a battery is.
    """
    if not supplies.is_dir():
        return None
    kinds = {folder: _line(folder / "type") for folder in supplies.iterdir()}
    if any(_line(folder / "online") == "1" for folder, kind in kinds.items() if kind in ("Mains", "USB")):
        return True
    # A mouse's battery has the scope of a device, not of the system.
    states = [
        _line(folder / "status")
        for folder, kind in kinds.items()
        if kind == "Battery" and _line(folder / "scope") != "Device"
    ]
    return "Discharging" not in states and not ("Unknown" in states and "Mains" in kinds.values())


def battery(supplies: Path = SUPPLIES) -> int | None:
    """Return the charge of the device's battery, in per cent.

    None where there is no battery, or its charge is not known.
    """
    for folder in sorted(supplies.iterdir()) if supplies.is_dir() else ():
        if _line(folder / "type") == "Battery" and _line(folder / "scope") != "Device":
            level = _line(folder / "capacity")
            return min(int(level), 100) if level.isascii() and level.isdigit() and len(level) <= 3 else None
    return None


def on_unmetered_network() -> bool | None:
    """Return whether the network is not metered, as NetworkManager says.

    None where it does not say.
    """
    if (busctl := shutil.which("busctl")) is None:
        return None
    try:
        answer = subprocess.run(  # nosec B603 # no shell
            [busctl, "--system", f"--timeout={_PATIENCE:g}", "get-property", *_ASK, "Metered"],
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=2 * _PATIENCE,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return metered_answer(answer.stdout[:_LONGEST_LINE].decode("ascii", "replace"))


def metered_answer(text: str) -> bool | None:
    """Return whether an answer of ``busctl`` says that the network is not metered.

    ``u 4`` is a network that is not. None where the answer does not say.
    """
    kind, _, number = text.strip().partition(" ")
    metered = _METERED.get(int(number)) if kind == "u" and number.isdecimal() else None
    return None if metered is None else not metered


def _line(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(_LONGEST_LINE).decode("ascii", "replace").strip()
    except OSError:
        return ""


@dataclass
class Surroundings:
    """Where and when a client stands; what a test replaces.

    Attributes:
        now: the local time.
        mains: whether the device is on mains power; None: not known.
        unmetered: whether its network costs nothing by what is sent; None: not known.
        clock: seconds, monotonic.
    """

    now: Callable[[], datetime] = datetime.now
    mains: Callable[[], bool | None] = on_mains
    unmetered: Callable[[], bool | None] = on_unmetered_network
    clock: Callable[[], float] = time.monotonic
    _asked: tuple[float, bool | None] | None = field(default=None, init=False)

    def network(self) -> bool | None:
        """Return whether the network is unmetered, as it was within the last half minute."""
        if self._asked is None or self.clock() - self._asked[0] >= _NETWORK_EVERY:
            self._asked = (self.clock(), self.unmetered())
        return self._asked[1]


def why_resting(limits: Limits, around: Surroundings, moved: Callable[[], int]) -> str:
    """Return the limit for which a client rests now, in a few words.

    Empty where it does not rest. What the device does not say counts as not allowed.

    Args:
        limits: the owner's.
        around: where the client stands.
        moved: returns the bytes of models that it has sent and fetched today (UTC).
    """
    if not within(limits.hours, around.now().time()):
        return f"hours = {limits.hours}"
    if limits.max_traffic and moved() >= limits.max_traffic * MEGABYTE:
        return f"max-traffic = {limits.max_traffic:g} MB is reached, until midnight UTC"
    if limits.mains_only and not (mains := around.mains()):
        return "mains-only: the device is on battery" if mains is False else f"mains-only: {_UNKNOWN_POWER}"
    if limits.unmetered_only and not (unmetered := around.network()):
        return f"unmetered-only: {'the network is metered' if unmetered is False else _UNKNOWN_NETWORK}"
    return ""


def check_surroundings(limits: Limits, around: Surroundings) -> None:
    """Check that the device says what limits ask of it, before a client starts.

    Raises:
        ConfigError: it does not; one line.
    """
    if limits.mains_only and around.mains() is None:
        raise ConfigError(f"mains-only = yes is not allowed here: {_UNKNOWN_POWER}")
    if limits.unmetered_only and around.network() is None:
        raise ConfigError(f"unmetered-only = yes is not allowed here: {_UNKNOWN_NETWORK}")


@dataclass
class Rest:
    """Says why a client rests.

    Attributes:
        pause_file: whose presence is the owner's pause; None: there is no state folder.
        guard: knows the limits.
        around: where the client stands.
        clock: seconds, monotonic.
    """

    pause_file: Path | None
    guard: Guard
    around: Surroundings
    clock: Callable[[], float] = time.monotonic
    _latest: tuple[float, str] = field(default=(float("-inf"), ""), init=False)

    def why(self) -> str:
        """Return why the client rests, in one line.

        Empty where it does not rest.
        """
        if self.pause_file is not None and self.pause_file.exists():
            return OWNERS_PAUSE
        looked, before = self._latest
        if self.clock() - looked < _EVERY:
            return before
        why = before
        with suppress(ConfigError):  # a damaged file is said where a message is answered
            why = why_resting(self.guard.limits_now(), self.around, self.guard.moved_today)
        self._latest = self.clock(), why
        return why
