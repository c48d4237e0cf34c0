"""The time at which work on a message stops: its deadline, or the owner's limit."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import psutil

from client.limits.limits import MEGABYTE, LimitReached

_WAY_BACK = 0.1
"""Share of a message's time that is kept for the answer's way back."""
_LONGEST_WAY_BACK = 1.0
_MEMORY_EVERY = 1.0
"""Seconds between two looks at the memory."""
_SHORTEST_REST = 0.01


def memory_held() -> int:
    """Return the bytes that this process holds in memory."""
    return int(psutil.Process().memory_info().rss)


@dataclass
class Deadline:
    """The time that is left for one message, looked at before each gradient.

    On the monotonic clock: a clock that is set while a client trains changes nothing.

    Attributes:
        until: when work has to stop.
        reason: what is said then.
        max_memory: bytes that the process may hold; 0: not looked at.
        clock: seconds, monotonic.
        held: returns the bytes that the process holds.
        max_cpu: cores that work may take on the average since it began; 0: any number.
        used: returns the CPU seconds of this process.
        sleep: waits.
    """

    until: float
    reason: str
    max_memory: float = 0.0
    clock: Callable[[], float] = time.monotonic
    held: Callable[[], int] = memory_held
    max_cpu: float = 0.0
    used: Callable[[], float] = time.process_time
    sleep: Callable[[float], None] = time.sleep
    _look: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        self._began = self.clock(), self.used()

    @classmethod
    def of(cls, left: float, ttl: float, max_seconds: float, max_memory: float, max_cpu: float = 0.0) -> "Deadline":
        """Return the deadline of a message.

        Args:
            left: seconds until its time is over.
            ttl: seconds for which it counted at first.
            max_seconds: the owner's limit; 0: none.
            max_memory: the owner's limit in MB; 0: none.
            max_cpu: the owner's limit in cores; 0: none.
        """
        left -= min(_LONGEST_WAY_BACK, _WAY_BACK * ttl)
        reason = "the message's deadline came before the work was done"
        if max_seconds and max_seconds < left:
            left, reason = max_seconds, f"the work took longer than this client's max-seconds = {max_seconds:g}"
        return cls(time.monotonic() + left, reason, max_memory * MEGABYTE, max_cpu=max_cpu)

    def check(self) -> None:
        """Check that there is time, and about once a second that there is memory; wait where work was too fast.

        Raises:
            LimitReached: if not.
        """
        if (owed := self.owed()) > _SHORTEST_REST:
            self.sleep(min(owed, max(0.0, self.until - self.clock())))
        now = self.clock()
        if now >= self.until:
            raise LimitReached(self.reason)
        if self.max_memory and now >= self._look:
            self._look = now + _MEMORY_EVERY
            if self.held() > self.max_memory:
                most = self.max_memory / MEGABYTE
                raise LimitReached(f"the work takes more memory than this client's max-memory = {most:g} MB")

    def owed(self) -> float:
        """Return the seconds for which work has to wait, so that it takes no more cores than it may."""
        if not self.max_cpu:
            return 0.0
        clock, used = self._began
        return (self.used() - used) / self.max_cpu - (self.clock() - clock)
