"""Waiting times of a client between two polls, and between two attempts to connect.

fedappeal's own SuperLink holds a poll until there is a message (`fedappeal.flower.superlink.held_polls`). Flower's
answers at once. It is one Python process, and a look takes 0.7 ms of its time (4 ms where it keeps a database file).
So the wait grows there with the time for which nothing came: an answer is soon after a message, and little is spent
on a pause.
"""

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
