"""The benchmark's runs: planned from the design, done where they are missing, read into results."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from fedappeal.protocol.metric import Metric
from fedappeal.record.reader import Record
from fedappeal.runs.launch.in_process import Machine
from fedappeal.settings.config import ConfigError
from fedappeal.studies.bench.design import SEEDS, Cell, cells
from fedappeal.studies.bench.results import NAME, RESULTS, BenchResults, measures
from fedappeal.studies.experiment import Arm, Experiment, Quick
from fedappeal.studies.harness import carry_out
from fedappeal.studies.plan import make_plan
from fedappeal.studies.record import versions_of
from fedappeal.studies.results import Row

QUICK: Mapping[str, Any] = {"clients": 10, "rounds": 12, "mandatory-rounds": 3, "solo.steps": 10}
QUICK_PART: tuple[tuple[str, ...], ...] = (("digits",), ("appeal", "defect"), ("fedavg", "maxfl", "adagd"))
QUICK_SEEDS = 2


@dataclass(frozen=True)
class Selection:
    """Which part of the design is run.

    Attributes:
        tasks: names; empty: the design's.
        behaviours: names; empty: the design's.
        strategies: names; empty: the design's.
        seeds: their number; 0: the design's.
        quick: the short form.
        known: results of earlier runs, whose rows are not run again.
        known_name: name of their file.
    """

    tasks: Sequence[str] = ()
    behaviours: Sequence[str] = ()
    strategies: Sequence[str] = ()
    seeds: int = 0
    quick: bool = False
    known: BenchResults | None = None
    known_name: str = RESULTS

    @property
    def cells(self) -> tuple[Cell, ...]:
        """The rows that are to be run.

        Raises:
            ConfigError: an unknown name; of known results: other settings or seeds, or there is nothing left to run.
        """
        tasks, behaviours, strategies = QUICK_PART if self.quick else ((), (), ())
        rows = cells(self.tasks or tasks, self.behaviours or behaviours, self.strategies or strategies)
        return rows if self.known is None else missing(rows, self.known, self.number_of_seeds, self.short)

    @property
    def number_of_seeds(self) -> int:
        """The number of seeds."""
        return self.seeds or (QUICK_SEEDS if self.quick else SEEDS)

    @property
    def short(self) -> Mapping[str, Any]:
        """Settings that go before the design's."""
        return QUICK if self.quick else {}

    @property
    def command(self) -> str:
        """The command that does these runs."""
        words = ["fedappeal bench", *(["--quick"] if self.quick else [])]
        for option in ("tasks", "behaviours", "strategies"):
            words += [f"--{option} {','.join(names)}"] if (names := getattr(self, option)) else []
        words += [f"--seeds {self.seeds}"] if self.seeds else []
        return " ".join([*words, *([f"--known {self.known_name}"] if self.known else [])])


def missing(
    rows: Sequence[Cell], present: BenchResults, seeds: int, short: Mapping[str, Any] | None = None
) -> tuple[Cell, ...]:
    """Return those of the rows that results lack, or have not all seeds of.

    Args:
        rows: what is asked for.
        present: results of earlier runs.
        seeds: number of seeds that is asked for.
        short: settings that go before the design's.

    Raises:
        ConfigError: the present rows were run with other seeds or settings, or none of the rows is missing.
    """
    if seeds != present.seeds:
        raise ConfigError(f"seeds = {seeds} is not allowed: the known results have {present.seeds}")
    for cell in present.cells():
        if present.settings[str(cell)] != {**cell.settings, **(short or {})}:
            raise ConfigError(f"known: row '{cell}' was run with other settings than the design has now")
    if not (lacking := tuple(cell for cell in rows if present.lacking(str(cell), seeds))):
        raise ConfigError("known: these results have all rows")
    return lacking


def do_runs(selection: Selection, out: Path, machine: Machine, console: Console, redo: bool = False) -> BenchResults:
    """Do the runs that are missing; return what came out of all, the known ones included.

    Raises:
        ConfigError: an unknown name, no task that can be run here, known results that do not fit, a run that was
            recorded with other settings, or another process is at it.
    """
    rows = {str(cell): cell for cell in selection.cells}
    experiment = Experiment(
        name=NAME,
        title="Who keeps its volunteers",
        source="the benchmark of free participation",
        claim="",
        settings={},
        arms=tuple(Arm(name, cell.settings, group=f"{cell.task}, {cell.behaviour}") for name, cell in rows.items()),
        measures=(),
        quick=Quick(QUICK, seeds=QUICK_SEEDS),
        seeds=SEEDS,
    )
    plan = make_plan(experiment, out, selection.number_of_seeds, selection.quick, data_dir=machine.data_dir)
    done, failed = carry_out(plan, machine, console, redo)
    numbers: list[Row] = []
    metrics: dict[str, dict[str, Any]] = {}
    columns: dict[str, str] = {}
    for arm in done.arms:
        cell, runs = rows[arm.name], done.of(arm.name)
        metric = Metric.of_record(Record(runs[0].path).config.get("metric"))
        metrics[cell.task] = metric.as_record()
        columns = columns or {m.key: m.title for m in measures(cell.task, metric, selection.short)}
        numbers.append(Row.of(arm, runs, measures(cell.task, metric, selection.short)))
    results = BenchResults(
        experiment=NAME,
        source=plan.experiment.source,
        command=selection.command,
        quick=plan.quick,
        seeds=plan.seeds,
        measures=columns,
        rows=tuple(numbers),
        figure=True,
        diverged={},
        skipped=plan.skipped,
        failed=failed,
        settings={
            name: {**cell.settings, **selection.short} for name, cell in rows.items() if name not in plan.skipped
        },
        metrics=metrics,
        versions=versions_of(plan),
    )
    return results if selection.known is None else selection.known.with_rows(results)
