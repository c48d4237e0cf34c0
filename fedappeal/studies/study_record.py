"""The record of an experiment: all that its page says, as the JSON beside it.

A page is made from its record alone (see `page`), so that it can be written again without the runs.
"""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedappeal.protocol.foreign_text import one_line
from fedappeal.settings.config import ConfigError, RunConfig
from fedappeal.studies.experiment import Arm, Experiment, Results, RunResult
from fedappeal.studies.plan import Plan, make_plan, skipped_lines
from fedappeal.studies.results import MOST, Row, StudyResults
from fedappeal.studies.table import diverged_runs
from fedappeal.studies.verdict import verdicts
from fedappeal.views.comparison.measures import Measure

_SEPARATE = ("out", "resume", "schedule-rounds", "seed")
"""Settings that differ from run to run by nature."""

_CHANGES_RUNS = ("--set", "--grid")
"""Options of a page's command that change its runs."""


@dataclass(frozen=True)
class StudyRecord:
    """An experiment and its results.

    Attributes:
        experiment: as it is written down today.
        numbers: what came out.
    """

    experiment: Experiment
    numbers: StudyResults

    def arms(self) -> list[Arm]:
        """Return the rows: planned arms, and arms with only the paper's numbers."""
        names = {row.name for row in self.numbers.rows if row.seeds or row.paper or not row.skipped}
        return [arm for arm in self.experiment.arms if arm.name in names]

    def with_verdicts(self) -> "StudyRecord":
        """Return the record with verdicts on its claims.

        Raises:
            ConfigError: scipy is not installed.
        """
        changes = {"verdicts": tuple(verdicts(self.results()))}
        drawn = {} if self.experiment.figure else {"figure": False, "undrawn": ()}
        return StudyRecord(self.experiment, self.numbers.model_copy(update={**changes, **drawn}))

    def waiting(self) -> list[str]:
        """Return the arms and columns that were written down after the last full run."""
        measured = self.numbers.measures
        arms = [] if self.numbers.quick else [arm.titled for arm in self._new_arms()]
        return arms + [f"the column '{m.title}'" for m in self.experiment.measures if m.key not in measured]

    def runs_waiting(self) -> frozenset[tuple[str, int]]:
        """Return row and seed of all runs that the page lacks.

        Those of rows with fewer seeds than the page, without runs that failed.
        """
        numbers = self.numbers
        return frozenset(
            (row.name, seed)
            for row in numbers.rows
            if not row.skipped
            for seed in numbers.lacking(row.name, numbers.seeds)
            if seed not in row.failed
        )

    def skipped(self) -> list[str]:
        """Return a line for each reason why arms could not be run."""
        # An arm that was added since then is not part of a group that could not be run.
        added = self._new_arms()
        arms = tuple(arm for arm in self.experiment.arms if arm not in added)
        reasons = {row.name: row.skipped.partition(": ")[0] for row in self.numbers.rows if row.skipped}
        return skipped_lines(arms, reasons)

    def _new_arms(self) -> list[Arm]:
        """Return the arms that were written down after the last full run."""
        present = {row.name for row in self.numbers.rows}
        return [arm for arm in self.experiment.arms if arm.name not in present]

    def results(self) -> Results:
        """Return the numbers as results, without the runs' histories.

        Measures that were written down after the runs are left out.
        """
        measures = tuple(m for m in self.experiment.measures if m.key in self.numbers.measures)
        runs = recorded_runs(self.numbers, {arm.name: arm for arm in self.experiment.arms})
        return Results(replace(self.experiment, measures=measures), runs, self.runs_waiting())

    def missing(self, out: Path, seeds: int = 0, data_dir: str = "") -> Plan:
        """Return the runs that the record lacks: rows, and seeds of rows.

        Args:
            out: folder of all experiments' runs.
            seeds: number of seeds; 0: the record's.
            data_dir: folder of the data sets.

        Raises:
            ConfigError: the record has all of them, or its rows were run in another way than the experiment says.
        """
        experiment, numbers = self.experiment, self.numbers
        seeds = seeds or numbers.seeds
        if numbers.quick:
            raise ConfigError(f"missing: the numbers of {experiment.name} are of the short form; run all of it")
        if changed := [option for option in _CHANGES_RUNS if option in numbers.command.split()]:
            raise ConfigError(
                f"missing: the numbers of {experiment.name} are of a run with {changed[0]}; run all of it"
            )
        if seeds < numbers.seeds:
            raise ConfigError(f"seeds = {seeds} is not allowed: the page of {experiment.name} has {numbers.seeds}")
        if not (arms := tuple(arm for arm in experiment.arms if numbers.lacking(arm.name, seeds))):
            raise ConfigError(f"missing: the page of {experiment.name} has all rows, with {numbers.seeds} seeds")
        rest = replace(experiment, arms=arms, quick=experiment.quick.model_copy(update={"arms": ()}))
        plan = make_plan(rest, out, seeds, data_dir=data_dir, present=numbers)
        planned = {run.arm.name: run.settings for run in plan.runs}
        for row in (row for row in numbers.rows if row.name in planned):
            for key, value in row.settings.items():
                if key in planned[row.name] and text_of(planned[row.name][key]) != value:
                    run_with = f"{key} = {one_line(value)}"
                    raise ConfigError(f"missing: row '{row.name}' was run with {run_with}; run all of it")
        return plan

    def joined(self, added: "StudyRecord") -> "StudyRecord":
        """Return the record with another run's rows and seeds, in the experiment's order.

        Rows that the experiment does not have any more are left out. General settings that are newer than the
        record count with their defaults, which change no run.

        Args:
            added: what it lacked.
        """
        old, new = self.numbers, added.numbers
        numbers = old.joined(new, [arm.name for arm in self.experiment.arms], command=new.command)
        drawn = {row.name for row in old.rows if row.seeds} - {*old.undrawn}
        drawn -= {row.name for row in new.rows if row.seeds}
        undrawn = tuple(row.name for row in numbers.rows if row.seeds and row.name not in drawn)
        rows = numbers.rows
        if not self.experiment.compute:
            all_defaults = {key: text_of(value) for key, value in RunConfig.parse_recorded({}).as_config().items()}
            defaults = {key: all_defaults[key] for row in rows for key in row.settings if key in all_defaults}
            rows = tuple(
                row.model_copy(update={"settings": {**defaults, **row.settings} if row.settings else {}})
                for row in rows
            )
        return StudyRecord(self.experiment, numbers.model_copy(update={"undrawn": undrawn, "rows": rows}))


def recorded_runs(numbers: StudyResults, arms: Mapping[str, Arm]) -> tuple[RunResult, ...]:
    """Return the runs of these rows, with their numbers in place of histories."""
    return tuple(
        RunResult(arms[row.name], seed, (), Path(), {key: ours[n] for key, ours in row.ours.items()})
        for row in numbers.rows
        if row.name in arms
        for n, seed in enumerate(row.seeds)
    )


def make_record(plan: Plan, results: Results, figure: bool) -> StudyRecord:
    """Return the record of an experiment's results.

    Args:
        plan: what was planned.
        results: what came out.
        figure: whether there is a picture.
    """
    measures = plan.experiment.measures
    settings = {
        run.arm.name: {k: text_of(run.settings[k]) for k in sorted(run.settings) if k not in _SEPARATE}
        for run in plan.runs
    }
    numbers = StudyResults(
        experiment=plan.experiment.name,
        source=plan.experiment.source,
        command=command(plan),
        quick=plan.quick,
        seeds=plan.seeds,
        measures={m.key: m.title for m in measures},
        rows=tuple(
            row_of(arm, results, measures, settings.get(arm.name, {}))
            for arm in plan.experiment.arms
            if arm.name in settings or arm.name in plan.skipped
        ),
        figure=figure,
        versions=versions_of(plan),
    )
    return StudyRecord(plan.experiment, numbers)


def row_of(arm: Arm, results: Results, measures: Sequence[Measure], settings: Mapping[str, Any]) -> Row:
    """Return a row: the numbers of its finished runs, and why others are missing."""
    runs = results.of(arm.name)
    return Row(
        name=arm.name,
        group=arm.group,
        paper=dict(arm.paper),
        seeds=tuple(run.seed for run in runs),
        rounds=tuple(len(run.lines) for run in runs),
        ours={m.key: tuple(_number_or_none(run.number(m)) for run in runs) for m in measures},
        settings=settings,
        skipped=results.skipped.get(arm.name, ""),
        failed={seed: reason for (name, seed), reason in results.failed.items() if name == arm.name},
        diverged=diverged_runs(runs),
    )


def _number_or_none(number: float | None) -> float | None:
    return number if number is not None and abs(number) <= MOST else None


def read_record(experiment: Experiment, folder: Path) -> StudyRecord:
    """Return the record beside an experiment's page.

    Raises:
        ConfigError: it is not there, or no record of this experiment.
    """
    numbers, arms = StudyResults.read(file := folder / f"{experiment.name}.json", experiment.name), experiment.arms
    if numbers.rows and not {arm.name for arm in arms} & {row.name for row in numbers.rows}:
        raise ConfigError(
            f"{file} has no row of {experiment.name}: it was written by an older version; the command that did its "
            "runs writes it again"
        )
    return StudyRecord(experiment, numbers)


def command(plan: Plan) -> str:
    """Return the command that makes the page."""
    name, grid = plan.searched
    words = ["fedappeal", "reproduce", name or plan.experiment.name, *(["--quick"] if plan.quick else [])]
    words += ["--grid", grid] if grid else []
    words += ["--seeds", str(plan.seeds)]
    for key, value in plan.changed.items():
        words += ["--set", f"{key}={value}"]
    return shlex.join(words)


def text_of(value: object) -> str:
    """Return a setting's value as the page shows it."""
    return "" if value is None else "(empty)" if value == "" else str(value)


def versions_of(plan: Plan) -> dict[str, tuple[str, ...]]:
    """Return the versions of the packages that the runs record, without the machine's."""
    versions: dict[str, set[str]] = {}
    for run in plan.runs:
        for package, version in run.recorded().get("versions", {}).items():
            if package != "platform":
                versions.setdefault(package, set()).add(str(version))
    return {package: tuple(sorted(numbers)) for package, numbers in versions.items()}
