"""`fedappeal report`, and the report at the end of a run."""

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from fedappeal.record.files import HISTORY
from fedappeal.settings.config import ConfigError
from fedappeal.views.report.report import ReportOptions, write_report
from fedappeal.views.terminal.shown import complain, say


def show_report(paths: Sequence[Path], output: Path | None, baseline: str, single_file: bool) -> None:
    """Write a report of runs, and say where.

    Raises:
        ConfigError: see `write_report`.
    """
    file = write_report(paths, ReportOptions(output, baseline, single_file), complain)
    say(Console(highlight=False), "the report: ", (str(file), "bold"))


def report_run(path: Path, wanted: bool) -> None:
    """Write the report of a run that is over; where it cannot be written, say why: the run is none the worse.

    Args:
        path: the run's folder; one that only another machine sees has no report here.
        wanted: whether the user wants one.
    """
    if not wanted or not (path / HISTORY).is_file():
        return
    try:
        show_report([path], None, "", False)
    except ConfigError as error:
        say(Console(highlight=False), f"no report: {error}")
