"""The benchmark's runs: planned from the design, done where they are missing, read into results."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rich.console import Console

from fedappeal.core.plugins import Provenance
from fedappeal.core.registry import STRATEGIES
from fedappeal.protocol.metric import Metric
from fedappeal.record.reader import Record
from fedappeal.runs.launch.in_process import Machine
from fedappeal.settings.config import ConfigError
from fedappeal.studies.bench.bench_results import NAME, RESULTS, BenchResults, measures
from fedappeal.studies.bench.design import CORE, SEEDS, Cell, cells
from fedappeal.studies.experiment import Experiment
from fedappeal.studies.harness import carry_out
from fedappeal.studies.plan import make_plan
from fedappeal.studies.results import Row
from fedappeal.studies.study_record import row_of, versions_of
from fedappeal.views.comparison.measures import Measure

QUICK_PART: tuple[tuple[str, ...], ...] = (("digits",), (CORE,), ("fedavg", "maxfl", "fedadam"))
QUICK_SEEDS = 8
SAME = 0.01
"""The relative difference up to which a run's number is another machine's."""


@dataclass(frozen=True)
class Selection:
    """The part of the design that is run.

    Attributes:
        tasks: names; empty: the design's.
        behaviours: names; empty: the design's.
        strategies: names; empty: the design's.
        seeds: their number; 0: the design's.
        quick: a part that says something in two minutes.
        known: results of earlier runs, which are not run again.
        known_name: name of their file.
        rows: these alone; empty: as the names say.
    """

    tasks: Sequence[str] = ()
    behaviours: Sequence[str] = ()
    strategies: Sequence[str] = ()
    seeds: int = 0
    quick: bool = False
    known: BenchResults | None = None
    known_name: str = RESULTS
    rows: Sequence[Cell] = ()

    @property
    def cells(self) -> tuple[Cell, ...]:
        """The rows that are to be run.

        Raises:
            ConfigError: an unknown name; of known results: other settings, or there is nothing left to run.
        """
        tasks, behaviours, strategies = QUICK_PART if self.quick else ((), (), ())
        rows = tuple(self.rows) or cells(
            self.tasks or tasks, self.behaviours or behaviours, self.strategies or strategies
        )
        return rows if self.known is None else missing(rows, self.known, self.number_of_seeds)

    @property
    def number_of_seeds(self) -> int:
        """The number of seeds."""
        return self.seeds or (QUICK_SEEDS if self.quick else SEEDS)

    @property
    def command(self) -> str:
        """The command that does these runs."""
        words = ["fedappeal bench", *(["--quick"] if self.quick else [])]
        for option in ("tasks", "behaviours", "strategies"):
            words += [f"--{option} {','.join(names)}"] if (names := getattr(self, option)) else []
        words += [f"--seeds {self.seeds}"] if self.seeds else []
        return " ".join([*words, *([f"--known {self.known_name}"] if self.known else [])])


def missing(rows: Sequence[Cell], present: BenchResults, seeds: int) -> tuple[Cell, ...]:
    """Return the rows without all their seeds in the results.

    Args:
        rows: what is asked for.
        present: results of earlier runs.
        seeds: number of seeds that is asked for.

    Raises:
        ConfigError: the present rows were run with other settings, or none of the rows is missing.
    """
    for row in present.rows:
        if row.settings and row.settings != Cell.of_key(row.name).settings:
            raise ConfigError(f"known: row {row.name!r} was run with other settings than the design has now")
    if not (lacking := tuple(cell for cell in rows if present.lacking(cell.key, min(seeds, cell.seeds)))):
        raise ConfigError("known: these results have all rows")
    return lacking


def do_runs(selection: Selection, out: Path, machine: Machine, console: Console, redo: bool = False) -> BenchResults:
    """Run what is missing; return the results of all runs, known ones included.

    Raises:
        ConfigError: an unknown name, no task that can be run here, known results that do not fit, a run that was
            recorded with other settings, or another process is at it.
    """
    rows = {cell.key: cell for cell in selection.cells}
    experiment = Experiment(
        name=NAME,
        title="Who keeps its volunteers",
        source="the benchmark of free participation",
        arms=tuple(cell.arm for cell in rows.values()),
        seeds=SEEDS,
    )
    earlier = selection.known
    plan = make_plan(experiment, out, selection.number_of_seeds, data_dir=machine.data_dir, present=earlier)
    plan = replace(plan, runs=tuple(run for run in plan.runs if run.seed < rows[run.arm.name].seeds))
    done = carry_out(plan, machine, console, redo)
    numbers: list[Row] = []
    metrics: dict[str, dict[str, Any]] = {}
    columns: dict[str, str] = {}
    for key, cell in rows.items():
        read_off: tuple[Measure, ...] = ()
        if runs := done.of(key):
            metric = Metric.of_record(Record(runs[0].path).config.get("metric"))
            metrics[cell.task] = metric.as_record()
            read_off = measures(cell.task, metric, int(cell.settings["rounds"]))
            columns = columns or {m.key: m.title for m in read_off}
        settings = {} if key in plan.skipped else cell.settings
        numbers.append(row_of(cell.arm, done, read_off, settings))
    results = BenchResults(
        experiment=NAME,
        source=plan.experiment.source,
        command=selection.command,
        quick=False,
        seeds=plan.seeds,
        measures=columns,
        rows=tuple(numbers),
        figure=True,
        metrics=metrics,
        versions=versions_of(plan),
        sources={name: source_of(name) for name in {cell.strategy for cell in rows.values()} if ":" in name},
    )
    return results if earlier is None else earlier.with_rows(results)


def source_of(strategy: str) -> str:
    """Return the first 16 hex digits of the SHA-256 of a strategy's file."""
    return Provenance.of(strategy, STRATEGIES.load(strategy)).source


def run_again(results: BenchResults, strategy: str, machine: Machine, console: Console) -> list[tuple[str, ...]]:
    """Run two rows' first seed again, in a folder of their own.

    Args:
        results: this machine's, or another's.
        strategy: whose first row with a mandatory round, and last row, are run.
        machine: how.
        console: where progress is shown.

    Returns:
        For each number of these runs: row, measure, theirs, here, and what is wrong; empty where both are the same.

    Raises:
        ConfigError: the results have no such rows, or the strategy's file is another one than theirs.
    """
    present = [cell for cell in results.cells() if cell.strategy == strategy and cell.goodwill]
    if not present:
        raise ConfigError(f"again: these results have no row of {strategy} with a mandatory round")
    if ":" in strategy and (here := source_of(strategy)) != (theirs := results.sources.get(strategy, "")):
        raise ConfigError(
            f"again: the file of {strategy} has the checksum {here}, in these results {theirs or 'none'}"
        )
    return repeat_rows(results, list(dict.fromkeys((present[0], present[-1]))), machine, console)


def repeat_rows(
    results: BenchResults, rows: Sequence[Cell], machine: Machine, console: Console
) -> list[tuple[str, ...]]:
    """Run the first seed of some rows again; return the same as `run_again`."""
    lines: list[tuple[str, ...]] = []
    with TemporaryDirectory() as folder:
        here = do_runs(Selection(seeds=1, rows=rows), Path(folder), machine, console)
    for cell in rows:
        for measure in results.measures_of(cell.task):
            theirs_and_ours = [of.numbers(cell, measure.key).get(0) for of in (results, here)]
            earlier, new = (math.nan if number is None else number for number in theirs_and_ours)
            same = theirs_and_ours[0] == theirs_and_ours[1] or math.isclose(earlier, new, rel_tol=SAME, abs_tol=1e-6)
            lines.append((cell.title, measure.title, f"{earlier:.4g}", f"{new:.4g}", "" if same else "differs"))
    return lines
