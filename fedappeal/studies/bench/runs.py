"""The benchmark's runs: planned from the design, done where they are missing, read into results."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from fedappeal.protocol.metric import Metric
from fedappeal.record.reader import Record
from fedappeal.runs.launch.in_process import Machine
from fedappeal.studies.bench.added_rows import joined, missing
from fedappeal.studies.bench.design import SEEDS, Cell, cells
from fedappeal.studies.bench.results import RESULTS, BenchResults, BenchRun, bench_run, row_name, titles_of
from fedappeal.studies.experiment import Arm, Experiment, Quick
from fedappeal.studies.harness import carry_out
from fedappeal.studies.plan import Plan, make_plan

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
        for option, names in (
            ("tasks", self.tasks),
            ("behaviours", self.behaviours),
            ("strategies", self.strategies),
        ):
            words += [f"--{option} {','.join(names)}"] if names else []
        words += [f"--seeds {self.seeds}"] if self.seeds else []
        return " ".join([*words, *([f"--known {self.known_name}"] if self.known else [])])


def bench_plan(selection: Selection, out: Path, data_dir: str = "") -> tuple[Plan, Mapping[str, Cell]]:
    """Return all runs, and each row by its name.

    Raises:
        ConfigError: an unknown name, or no task can be run here.
    """
    rows = {row_name(cell): cell for cell in selection.cells}
    experiment = Experiment(
        name="bench",
        title="Who keeps its volunteers",
        source="the benchmark of free participation",
        claim="",
        settings={},
        arms=tuple(Arm(name, cell.settings, group=f"{cell.task}, {cell.behaviour}") for name, cell in rows.items()),
        measures=(),
        quick=Quick(QUICK, seeds=QUICK_SEEDS),
        seeds=SEEDS,
    )
    return make_plan(experiment, out, selection.number_of_seeds, selection.quick, data_dir=data_dir), rows


def do_runs(selection: Selection, out: Path, machine: Machine, console: Console, redo: bool = False) -> BenchResults:
    """Do the runs that are missing; return what came out of all, the known ones included.

    Raises:
        ConfigError: an unknown name, known results that do not fit, a run that was recorded with other settings, or
            another process is at it.
    """
    plan, rows = bench_plan(selection, out, machine.data_dir)
    done, failed = carry_out(plan, machine, console, redo)
    found: list[BenchRun] = []
    metrics: dict[str, dict[str, Any]] = {}
    versions: dict[str, str] = {}
    for result in done.runs:
        cell, record = rows[result.arm.name], Record(result.path).config
        metric = Metric.of_record(record.get("metric"))
        metrics[cell.task] = metric.as_record()
        versions |= {name: str(each) for name, each in record["versions"].items() if name != "platform"}
        found.append(bench_run(cell, result, metric, selection.short))
    settings = {name: {**cell.settings, **selection.short} for name, cell in rows.items() if name not in plan.skipped}
    results = BenchResults(
        quick=plan.quick,
        command=selection.command,
        seeds=plan.seeds,
        versions=versions,
        titles=titles_of(found),
        metrics=metrics,
        settings=settings,
        skipped=plan.skipped,
        failed=failed,
        runs=found,
    )
    return results if selection.known is None else joined(selection.known, results)
