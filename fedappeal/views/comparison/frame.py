"""`compare`: runs compared in Python, as a DataFrame."""

import warnings
from collections.abc import Iterable
from typing import TYPE_CHECKING

from fedappeal.views.comparison.export import frame_of
from fedappeal.views.comparison.result import compare_runs
from fedappeal.views.comparison.runs import RunLike, read_runs

if TYPE_CHECKING:
    import pandas as pd


def compare(runs: RunLike | Iterable[RunLike], *, baseline: str = "", each_run: bool = False) -> "pd.DataFrame":
    """Return a row for each group of runs and measure; needs the extra ``frames``.

    Runs that differ in their seeds alone are a group, named by the settings in which it differs from others.

    Args:
        runs: folders of runs, folders that hold such folders (a sweep's), or objects with a ``path``; one or more.
        baseline: the group from which the differences are, by its name, its settings (``strategy=fedavg``) or their
            values (``fedavg``); empty: the first of each task.
        each_run: make each run a group of its own, named by its folder.

    Returns:
        ``task``, ``group``, ``measure``; ``mean``, ``low`` and ``high`` of its 95 % interval, ``n`` seeds;
        ``difference`` from the baseline over the ``pairs`` seeds that both have, ``difference_low``,
        ``difference_high``, ``wins`` (seeds for which the group is better) and ``verdict`` (``level`` where the
        interval holds 0). Shares are numbers from 0 to 1. ``attrs["notes"]`` names what is odd about the runs.

    Warns:
        UserWarning: a run is not finished, so that all were compared after an earlier round.

    Raises:
        ConfigError: a folder without a run, an unknown baseline, or pandas is not installed.
    """
    read, empty = read_runs(runs)
    found = compare_runs(read, baseline, each_run)
    frame = frame_of(found)
    if empty:
        frame.attrs["notes"].append(left_out(empty))
    for comparison in found:
        if comparison.after:
            warnings.warn(comparison.notes[0], stacklevel=2)
    return frame


def left_out(names: Iterable[str]) -> str:
    """Return the note on runs that have no finished round."""
    return f"left out, because no round is finished: {', '.join(names)}"
