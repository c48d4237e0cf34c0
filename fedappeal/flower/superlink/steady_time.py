"""Flower's time of day in a SuperLink and all that it starts: read once, and counted on by a clock that is never set.

Flower's leases of tasks and nodes end at a time of day. A machine's clock that is set an hour ahead would end them
all, and the run with them.
"""

import os
from datetime import UTC, datetime, tzinfo
from types import SimpleNamespace

from flwr.supercore import date

from fedappeal.flower.processes import replace_name
from fedappeal.system.clock import CLOCK

STEADY = "FEDAPPEAL_STEADY_TIME"
"""Variable of what a SuperLink starts: seconds from the counted time to the time of day."""


def begin_steady_time() -> None:
    """Let Flower count on from the present time in this process, and in all that it starts."""
    os.environ[STEADY] = repr(CLOCK.difference)
    keep_steady_time()


def keep_steady_time() -> None:
    """Let Flower count on in this process as in the SuperLink that started it, where that does."""
    if STEADY in os.environ:
        CLOCK.difference = float(os.environ[STEADY])
        replace_name(date, "datetime", SimpleNamespace(datetime=_Moment, UTC=UTC))


class _Moment:
    """What Flower's `now` calls of `datetime.datetime`."""

    @staticmethod
    def now(tz: tzinfo) -> datetime:
        return datetime.fromtimestamp(CLOCK.now(), tz)
