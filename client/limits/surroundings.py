"""The device's power supply, battery and network, as the system reports them."""

import shutil
import subprocess  # nosec B404 # our command, no shell
from pathlib import Path

SUPPLIES = Path("/sys/class/power_supply")
_ASK = ("org.freedesktop.NetworkManager", "/org/freedesktop/NetworkManager", "org.freedesktop.NetworkManager")
_METERED = {1: True, 2: False, 3: True, 4: False}
"""NetworkManager's NMMetered: yes, no, guessed yes, guessed no; 0 is unknown."""
_PATIENCE = 3.0
_LONGEST = 200


def on_mains(supplies: Path = SUPPLIES) -> bool | None:
    """Return whether the device is on mains power; None where it does not say (other systems than Linux).

    A device without a battery is.
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
    """Return how full the device's battery is, in per cent; None where there is none, or it is not known."""
    for folder in sorted(supplies.iterdir()) if supplies.is_dir() else ():
        if _line(folder / "type") == "Battery" and _line(folder / "scope") != "Device":
            level = _line(folder / "capacity")
            return min(int(level), 100) if level.isascii() and level.isdigit() and len(level) <= 3 else None
    return None


def on_unmetered_network() -> bool | None:
    """Return whether the network is not metered, as NetworkManager says; None where it does not say."""
    if (busctl := shutil.which("busctl")) is None:
        return None
    try:
        asked = subprocess.run(  # nosec B603 # no shell
            [busctl, "--system", f"--timeout={_PATIENCE:g}", "get-property", *_ASK, "Metered"],
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=2 * _PATIENCE,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return metered_answer(asked.stdout[:_LONGEST].decode("ascii", "replace"))


def metered_answer(text: str) -> bool | None:
    """Return what an answer of ``busctl`` says: ``u 4`` is a network that is not metered; None: unknown."""
    kind, _, number = text.strip().partition(" ")
    metered = _METERED.get(int(number)) if kind == "u" and number.isdecimal() else None
    return None if metered is None else not metered


def _line(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(_LONGEST).decode("ascii", "replace").strip()
    except OSError:
        return ""
