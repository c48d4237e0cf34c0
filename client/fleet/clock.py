"""The difference between this machine's clock and a SuperLink's.

The SuperLink refuses a call whose signature is of another time than its own, more than 5 s ahead or 305 s behind,
and does not say what time it is. But the client may sign any time: which times pass tells the difference.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import compress

from fedappeal.flower.node.fleet import WrongClock
from fedappeal.flower.node.fleet_grpc import GrpcFleet
from fedappeal.flower.node.signing import AHEAD, BEHIND
from fedappeal.system.clock import CLOCK

_FURTHEST = 15 * 3600.0
"""Seconds that are searched each way: a wrong time zone is up to 14 hours."""
_AT_ONCE = 16

Passes = Callable[[Sequence[float]], list[bool]]
"""Whether calls pass that are signed with this machine's time plus these seconds."""


@contextmanager
def clock_measured(fleet: GrpcFleet) -> Iterator[None]:
    """Let a call that is refused because of its time say how far this machine's clock is off.

    The next call is signed with the time that the machine's clock shows now: that may have been set right meanwhile.

    Raises:
        WrongClock: with that line.
        NotAnswering: if the SuperLink does not answer meanwhile.
    """
    try:
        yield
    except WrongClock:
        CLOCK.read_again()
        raise WrongClock(describe(seconds_ahead(fleet.pass_when_signed), fleet.address)) from None


def seconds_ahead(passes: Passes) -> float | None:
    """Return by how many seconds this machine's clock is ahead of the SuperLink's (negative: behind).

    Args:
        passes: asks the SuperLink.

    Returns:
        The difference, to half a second; None if it is more than 15 hours.
    """
    steps = range(int(_FURTHEST // BEHIND) + 1)
    shifts = [sign * step * BEHIND for step in steps for sign in ((1, -1) if step else (1,))]  # the smallest first
    batches = (shifts[start : start + _AT_ONCE] for start in range(0, len(shifts), _AT_ONCE))
    if (good := next((shift for batch in batches for shift in compress(batch, passes(batch))), None)) is None:
        return None
    # The latest time that passes is the SuperLink's plus its tolerance.
    bad = good + BEHIND + 2 * AHEAD
    while bad - good > 0.5:
        middle = (good + bad) / 2
        good, bad = (middle, bad) if passes([middle])[0] else (good, middle)
    return AHEAD - good


def describe(ahead: float | None, address: str) -> str:
    """Return what is wrong with this machine's clock, in one line."""
    if ahead is not None and -BEHIND < ahead < AHEAD:
        return f"this machine's clock, or that of the SuperLink at {address}, was set: they agree again"
    if ahead is None:
        how = f"more than {_FURTHEST / 3600:.0f} hours away from that of"
    else:
        seconds = round(abs(ahead))
        hours = f" ({seconds / 3600:.1f} hours)" if seconds >= 3600 else ""
        how = f"{seconds} s{hours} {'ahead of' if ahead > 0 else 'behind'}"
    allowed = f"{AHEAD:g} s ahead and {BEHIND:g} s behind are allowed"
    return f"this machine's clock is {how} the SuperLink at {address} ({allowed}): set it"
