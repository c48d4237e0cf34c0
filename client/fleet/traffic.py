"""The bytes of models that a connection moves: counted, and held back to an owner's bandwidth; and its waits."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass
class Traffic:
    """Counts bytes, and waits until they have taken as long as they may.

    Attributes:
        bandwidth: returns the most bytes a second, on the average; 0: any number.
        wait: waits for seconds; it may end early, where the process does.
        clock: seconds, monotonic.
    """

    bandwidth: Callable[[], float] = lambda: 0.0
    wait: Callable[[float], object] = time.sleep
    clock: Callable[[], float] = time.monotonic
    _moved: int = field(default=0, init=False)
    _free_at: float = field(default=float("-inf"), init=False)

    def move(self, count: int, began: float, longest: float = math.inf) -> bool:
        """Count bytes that were moved, and wait where they came too fast; return whether that was in time.

        Args:
            count: of the bytes.
            began: when their transfer began, on this clock.
            longest: seconds after which the wait is no use; it is then not begun, and owed by the next bytes.
        """
        self._moved += count
        if not count or not (bandwidth := self.bandwidth()):
            return True
        self._free_at = max(self._free_at, began) + count / bandwidth
        wait = self._free_at - self.clock()
        if wait > longest:
            return False
        if wait > 0:
            self.wait(wait)
        return True

    def take(self) -> int:
        """Return the bytes since this was last asked."""
        moved, self._moved = self._moved, 0
        return moved


SHORTEST = 0.01
"""Seconds before the first look after a message."""
ACTIVE = 0.25
"""Longest wait, in seconds, while a run is active."""
IDLE = 1.0
"""Wait, in seconds, once no message came for `IDLE_AFTER` seconds."""
IDLE_AFTER = 60.0
RETRY_FIRST = 0.5
RETRY_LONGEST = 5.0


def poll_wait(idle: float) -> float:
    """Return the seconds to wait before the next look for a message.

    A quarter of the time since the last message: the answer to a message is late by an eighth of the pause before
    it on average, and the first second of a pause costs about 20 looks.

    Args:
        idle: seconds since the last message, at least 0.
    """
    if idle >= IDLE_AFTER:
        return IDLE
    return min(max(idle / 4, SHORTEST), ACTIVE)


def retry_wait(attempt: int, jitter: float) -> float:
    """Return the seconds to wait before connecting again.

    Args:
        attempt: failed attempts so far, at least 1.
        jitter: a draw from [0, 1); it spreads clients that lost the same SuperLink over +-20 %.
    """
    wait = min(RETRY_FIRST * 1.6 ** (min(attempt, 50) - 1), RETRY_LONGEST)
    return wait * (0.8 + 0.4 * jitter)
