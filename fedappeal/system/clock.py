"""This machine's time, counted on by the monotonic clock.

A jump of the machine's clock does not change it.
"""

import time
from collections.abc import Callable
from functools import cached_property


def _monotonic_seconds() -> float:
    """Return monotonic seconds.

    Where the system can, those in which the machine slept count as well.
    """
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


class SteadyClock:
    """A machine's time, read once and then counted."""

    def __init__(
        self, machine: Callable[[], float] = lambda: time.time(), counted: Callable[[], float] = _monotonic_seconds
    ) -> None:
        """Begin, without reading the machine's clock yet.

        Args:
            machine: returns the machine's time in seconds since 1970, which may be set at any moment.
            counted: returns seconds that only grow.
        """
        self._machine, self._counted = machine, counted

    def now(self) -> float:
        """Return the time in seconds since 1970."""
        return self._counted() + self.difference

    @cached_property
    def difference(self) -> float:
        """Seconds from the counted time to the time of day; another process's may be set."""
        return self._machine() - self._counted()

    def read_again(self) -> None:
        """Set the clock by the machine's time again.

        Another party, which has the right one, does not agree with this one.
        """
        self.difference = self._machine() - self._counted()


CLOCK = SteadyClock()
"""The clock by which a client signs its calls and reads the deadlines of messages."""
