"""`fedappeal bench`: does the benchmark's runs and writes its page."""

import sys
from pathlib import Path

from rich.console import Console

from fedappeal.cli.option_groups import BenchOptions
from fedappeal.runs.launch.in_process import Machine
from fedappeal.settings.config import ConfigError
from fedappeal.studies.bench.page import tables, with_verdicts, write_page
from fedappeal.studies.bench.results import RESULTS, BenchResults
from fedappeal.studies.bench.runs import Selection, do_runs
from fedappeal.studies.verdict import check_statistics
from fedappeal.views.comparison.measures import check_plots
from fedappeal.views.terminal.shown import complain, say


def start_bench(options: BenchOptions, machine: Machine) -> None:
    """Do the runs that are missing, print the tables, write results, picture and page.

    Raises:
        ConfigError: before anything is started, for what is not allowed.
    """
    if options.seeds < 0:
        raise ConfigError(f"seeds = {options.seeds} is not allowed: at least 1 (0: the design's number)")
    tasks, behaviours, strategies = map(_names, (options.tasks, options.behaviours, options.strategies))
    known = None if options.known is None else BenchResults.of_file(options.known)
    name = "" if options.known is None else str(options.known)
    selection = Selection(tasks, behaviours, strategies, options.seeds, options.quick, known, name)
    check_plots()
    check_statistics()
    console = Console(highlight=False)
    try:
        results = do_runs(selection, options.out.absolute(), machine, console, options.redo)
    except KeyboardInterrupt:
        print("interrupted; finished runs are kept, the same command does the others", file=sys.stderr)
        sys.exit(130)
    _show(results, options.page or options.out, console)
    for run, reason in results.failed.items():
        complain(f"{run}: {reason}")
    if results.failed:
        sys.exit(1)


def write_again(results: Path) -> None:
    """Write picture and page again from the results of earlier runs.

    Raises:
        ConfigError: the file cannot be read.
    """
    check_plots()
    check_statistics()
    _show(BenchResults.of_file(results), results.parent, Console(highlight=False))


def _show(results: BenchResults, folder: Path, console: Console) -> None:
    results = with_verdicts(results)
    for table in tables(results):
        for part in table.rich(console.width):
            console.print(part)
    folder.mkdir(parents=True, exist_ok=True)
    results.write(folder / RESULTS)
    say(console, "the page: ", (str(write_page(results, folder)), "bold"))


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())
