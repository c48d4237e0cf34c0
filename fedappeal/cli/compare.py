"""`fedappeal compare`: runs side by side, grouped by their settings; as tables, a file, a picture."""

import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, cast

from rich.console import Console

from fedappeal.cli.option_groups import CompareOptions
from fedappeal.record.lines import HISTORY
from fedappeal.record.output import check_output
from fedappeal.record.reader import Record
from fedappeal.settings.config import ConfigError
from fedappeal.system.files import write_output
from fedappeal.views.comparison.curves import check_picture, draw_comparison
from fedappeal.views.comparison.export import FORMATS, Format, left_out, text_of
from fedappeal.views.comparison.measures import picture_bytes
from fedappeal.views.comparison.recorded_runs import read_runs
from fedappeal.views.comparison.result import compare_runs
from fedappeal.views.comparison.table import comparison_tables, print_tables
from fedappeal.views.report.recorded import NO_NAMES
from fedappeal.views.report.report import ReportOptions, write_report
from fedappeal.views.terminal.printing import complain, say, say_where

if TYPE_CHECKING:
    from fedappeal.federation.remote import RemoteSuperLink


def show_comparison(paths: Sequence[Path], options: CompareOptions, console: Console | None = None) -> None:
    """Print a comparison of runs, or write it into files.

    Nothing is printed or written before all is read and made.

    Raises:
        ConfigError: a folder without a run, an unknown baseline, measure or format, or a file that cannot be written.
    """
    _check(options)
    runs, empty = read_runs(paths)
    result = compare_runs(runs, options.baseline, options.each_run, list(filter(None, options.measures.split(","))))
    notes = [note for comparison in result for note in comparison.notes]
    notes += [left_out(empty)] if empty else []
    text = text_of(result, cast(Format, options.to)) if options.to else ""
    if options.plot:
        write_output("plot", options.plot, picture_bytes(draw_comparison(result), options.plot.suffix))
    if options.output:
        write_output("output", options.output, text.encode())
    console = console or Console(highlight=False)
    if options.to and not options.output:
        sys.stdout.write(text)
        console = Console(highlight=False, stderr=True)  # standard output is for another program
    elif not options.to:
        print_tables(comparison_tables(result), console)
    for note in notes:
        say(console, note)
    for what, path in (("table", options.output), ("picture", options.plot)):
        if path:
            say_where(console, f"the {what}", path)


def _check(options: CompareOptions) -> None:
    if options.to and options.to not in FORMATS:
        raise ConfigError(f"to = '{options.to}' is not allowed: {', '.join(FORMATS)}")
    if options.output and not options.to:
        raise ConfigError(f"output = '{options.output}' is not allowed without --to: {', '.join(FORMATS)}")
    if options.plot:
        check_picture(options.plot)
    for name, path in (("output", options.output), ("plot", options.plot)):
        if path:
            check_output(name, path)


def show_report(paths: Sequence[Path], options: ReportOptions) -> None:
    """Write a report of runs, and say where.

    Raises:
        ConfigError: see `write_report`.
    """
    file = write_report(paths, options, complain)
    say_where(Console(highlight=False), "the report", file)


def report_run(path: Path, wanted: bool, superlink: "RemoteSuperLink | None" = None) -> None:
    """Write a finished run's report; print why if it cannot be written.

    The run is none the worse for it.

    Args:
        path: the run's folder; one that only another machine sees has no report here.
        wanted: whether the user wants one.
        superlink: the long-running SuperLink that ran it, which knows its clients' names.
    """
    if not wanted or not (path / HISTORY).is_file():
        return
    names: Mapping[str, str] = NO_NAMES
    try:
        if superlink is not None:
            from fedappeal.flower.control import ControlError
            from fedappeal.views.live.clients import client_names

            with suppress(ControlError):  # it has ended since: the report has client-ids
                names = client_names(Record(path).events, superlink.nodes())
        show_report([path], ReportOptions(names=names))
    except ConfigError as error:
        say(Console(highlight=False), f"no report: {error}")
