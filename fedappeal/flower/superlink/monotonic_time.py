"""Flower's time of day in a SuperLink and in the processes that it starts.

It is read once, and counted on by the monotonic clock.

Flower's leases of tasks and nodes end at a time of day. A machine's clock that is set an hour ahead would end them
all, and the run with them.
"""

import os
from datetime import UTC, datetime, tzinfo
from types import SimpleNamespace

from flwr.supercore import date

from fedappeal.flower.processes import replace_name
from fedappeal.system.clock import CLOCK

DIFFERENCE = "FEDAPPEAL_CLOCK_DIFFERENCE"
"""Variable of what a SuperLink starts: seconds from the counted time to the time of day."""


def begin_monotonic_time() -> None:
    """Set Flower's clock to a monotonic one, in this process and its children.

    It counts on from the present time.
    """
    os.environ[DIFFERENCE] = repr(CLOCK.difference)
    keep_monotonic_time()


def keep_monotonic_time() -> None:
    """Set Flower's clock to that of the SuperLink that started this process, if monotonic."""
    if DIFFERENCE in os.environ:
        CLOCK.difference = float(os.environ[DIFFERENCE])
        replace_name(date, "datetime", SimpleNamespace(datetime=_Moment, UTC=UTC))


class _Moment:
    """The stand-in for `datetime.datetime` in Flower's `now`."""

    @staticmethod
    def now(tz: tzinfo) -> datetime:
        return datetime.fromtimestamp(CLOCK.now(), tz)
