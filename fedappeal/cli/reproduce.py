"""`fedappeal reproduce`: a paper's table or figure, ours beside theirs; `fedappeal bench`: the benchmark's page."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from fedappeal.cli.option_groups import BenchOptions, ReproduceOptions
from fedappeal.reproductions import experiment_names, load_experiment
from fedappeal.runs.launch.in_process import Machine
from fedappeal.runs.launch.observers import INTERRUPTED, RunUnfinished
from fedappeal.settings.config import ConfigError
from fedappeal.settings.model import Failure, key_and_value
from fedappeal.studies.bench import bench_page as bench_page
from fedappeal.studies.bench.bench_results import RESULTS, BenchResults
from fedappeal.studies.bench.runs import Selection, do_runs, run_again
from fedappeal.studies.experiment import Experiment, Results
from fedappeal.studies.experiment_page import add_to_page, all_tables, rewrite_page, write_page
from fedappeal.studies.grid_search import best_of_each, grid_experiment, grid_keys
from fedappeal.studies.harness import carry_out
from fedappeal.studies.plan import Plan, make_plan
from fedappeal.studies.study_record import StudyRecord, read_record
from fedappeal.studies.verdict import check_statistics
from fedappeal.system.wording import in_columns
from fedappeal.views.comparison.measures import check_plots
from fedappeal.views.comparison.table import TextTable, print_tables
from fedappeal.views.terminal.printing import print_lines, say, say_where

_CONSOLE = Console(highlight=False)


def start_reproduction(options: ReproduceOptions, machine: Machine) -> None:
    """Run an experiment's missing runs and write its page; or list all experiments.

    Raises:
        ConfigError: before anything is started, for what is not allowed.
    """
    if options.list_all:
        experiments = map(load_experiment, experiment_names())
        rows = [(experiment.name, f"{experiment.title} ({experiment.source})") for experiment in experiments]
        print_lines(in_columns(rows))
        return
    if not options.name:
        raise ConfigError("which experiment? `fedappeal reproduce --list` lists them")
    if options.seeds < 0:
        raise ConfigError(f"seeds = {options.seeds} is not allowed: at least 1 (0: the experiment's own number)")
    experiment = load_experiment(options.name)
    if options.missing:
        _add_rows(experiment, options, machine)
        return
    if options.from_numbers:
        page = rewrite_page(experiment, options.pages or options.out)
        say_where(_CONSOLE, "the page", page)
        return
    keys = grid_keys(experiment, options.grid) if options.grid else ()
    check_statistics()
    if experiment.figure or experiment.glances:
        check_plots()
    changed = dict(key_and_value(text, "set") for text in options.changed or ())
    tried = grid_experiment(experiment, keys) if keys else experiment
    seeds = options.seeds or (1 if keys else 0)
    plan = make_plan(tried, options.out.absolute(), seeds, options.quick, changed, machine.data_dir)
    if keys:
        plan = dataclasses.replace(plan, searched=(options.name, options.grid))
    results = _results(plan, machine, options.redo)
    folder = options.pages or options.out
    trouble = _report(*write_page(plan, results, folder))
    if keys:
        trouble += _report(*write_page(*best_of_each(experiment, plan, results), folder))
    _end(results.failed, trouble)


def _results(plan: Plan, machine: Machine, redo: bool) -> Results:
    say(_CONSOLE, (plan.experiment.title, "bold"), f" ({plan.experiment.source})")
    with _until_interrupted():
        return carry_out(plan, machine, _CONSOLE, redo)


@contextmanager
def _until_interrupted() -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        line = "interrupted; finished runs are kept, the same command does the others"
        raise RunUnfinished(line, code=INTERRUPTED) from None


def _add_rows(experiment: Experiment, options: ReproduceOptions, machine: Machine) -> None:
    """Run the page's missing rows and seeds, and write it with them.

    Raises:
        ConfigError: the page has all of them, or an option changes what is run.
    """
    others: dict[str, object] = {
        "quick": options.quick,
        "grid": options.grid,
        "set": options.changed,
        "from-numbers": options.from_numbers,
    }
    if wrong := [name for name, value in others.items() if value]:
        raise ConfigError(f"{wrong[0]} is not allowed with --missing: its rows are run as the page's others were")
    if experiment.glances:
        check_plots()
    folder = options.pages or options.out
    record = read_record(experiment, folder)
    plan = record.missing(options.out.absolute(), options.seeds, machine.data_dir)
    results = _results(plan, machine, options.redo)
    _end(results.failed, _report(*add_to_page(record, plan, results, folder)))


def _end(failed: Mapping[tuple[str, int], str], trouble: Sequence[str] = ()) -> None:
    if failed or trouble:
        raise Failure(*trouble, *(f"{row}, seed {seed}: {reason}" for (row, seed), reason in failed.items()))


def _report(page: Path, record: StudyRecord, trouble: str) -> list[str]:
    """Print the tables and the page's path; return what went wrong with the figure, in lines."""
    print_tables(all_tables(record), _CONSOLE)
    say_where(_CONSOLE, "the page", page)
    return [f"the figure could not be drawn: {trouble}"] if trouble else []


def start_bench(options: BenchOptions, machine: Machine) -> None:
    """Run the benchmark's missing runs, and write results, picture and page.

    Or only draw and write them from earlier runs.

    Raises:
        ConfigError: before anything is started, for what is not allowed.
    """
    if options.seeds < 0:
        raise ConfigError(f"seeds = {options.seeds} is not allowed: at least 1 (0: the design's number)")
    tasks, behaviours, strategies = map(_names, (options.tasks, options.behaviours, options.strategies))
    if options.again is not None:
        _run_again(options.again, strategies, machine)
        return
    check_plots()
    check_statistics()
    if options.from_results is not None:
        _show(BenchResults.of_file(options.from_results), options.from_results.parent)
        return
    earlier = None if options.known is None else BenchResults.of_file(options.known)
    name = "" if options.known is None else str(options.known)
    selection = Selection(tasks, behaviours, strategies, options.seeds, options.quick, earlier, name)
    with _until_interrupted():
        results = do_runs(selection, options.out.absolute(), machine, _CONSOLE, options.redo)
    _show(results, options.page or options.out)
    _end(results.failed)


def _run_again(file: Path, strategies: tuple[str, ...], machine: Machine) -> None:
    """Repeat two rows of each strategy beside ours; exit code 1 if numbers differ."""
    results, differs = BenchResults.of_file(file), False
    for strategy in strategies:
        rows = run_again(results, strategy, machine, _CONSOLE)
        print_tables([TextTable(f"{strategy}, seed 0", ("", "", file.name, "here", ""), tuple(rows))], _CONSOLE)
        differs = differs or any(row[-1] for row in rows)
    if differs or not strategies:
        raise Failure("a number differs" if strategies else "again: which of its strategies? --strategies NAME")


def _show(results: BenchResults, folder: Path) -> None:
    results = bench_page.with_verdicts(results)
    print_tables(bench_page.tables(results), _CONSOLE)
    folder.mkdir(parents=True, exist_ok=True)
    results.write(folder / RESULTS)
    say_where(_CONSOLE, "the page", bench_page.write_page(results, folder))


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())
