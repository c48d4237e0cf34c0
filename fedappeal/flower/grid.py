"""Flower's HTTP grid, without its 1-second stalls.

``HttpGrid.pull_messages`` meets replies whose objects a client is still sending, and then waits a whole second
before it asks again. Nothing of it can be set from outside, so the one function that waits gets shorter waits here.
"""

import functools

from flwr.supercore.run import Run

__all__ = ["Run", "pull_without_stalls"]

FIRST_WAIT = 0.01
LONGEST_WAIT = 0.25


def pull_without_stalls() -> None:
    """Let this process's HTTP grid ask again for an object on its way after 10 to 250 milliseconds."""
    # Here, because a simulation needs `Run` and never loads the grid.
    from flwr.supercore.inflatable.inflatable_utils import pull_objects
    from flwr.superlink.grid import http_grid

    waiting = functools.partial(pull_objects, initial_backoff=FIRST_WAIT, backoff_cap=LONGEST_WAIT)
    vars(http_grid)["pull_objects"] = waiting
