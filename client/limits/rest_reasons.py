"""Reasons for which a client rests: the owner's limits on hours, traffic, power and network."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime

from client.limits.hours import within
from client.limits.limits import MEGABYTE, Limits
from client.limits.surroundings import on_mains, on_unmetered_network
from fedappeal.settings.config import ConfigError

RESTING = "resting"
"""A file of this name in the state folder says for which limit a running client rests."""
_NETWORK_EVERY = 30.0
"""Seconds for which an answer about the network counts: each is a process of its own."""


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
    """Return the limit for which a client rests now, in a few words; empty: none.

    What the device does not say counts as not allowed.

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


_UNKNOWN_POWER = "this machine does not say whether it is on mains power (Linux: /sys/class/power_supply)"
_UNKNOWN_NETWORK = "this machine does not say whether its network is metered (Linux: NetworkManager, by busctl)"
