"""The benchmark's results: one versioned JSON file, from which the page is made without the runs."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from fedappeal.protocol.metric import Metric
from fedappeal.settings.config import ConfigError
from fedappeal.studies.bench.design import BEHAVIOURS, TASKS, Cell
from fedappeal.studies.experiment import RunResult
from fedappeal.system.files import replace_file
from fedappeal.views.comparison.measures import Lines, Measure, continued, kept, late, megabytes_to, rounds_to, stayed

RESULTS = "results.json"
MOST_BYTES = 50_000_000
MOST = 1e100
"""Bound on a number: squares of such numbers add up to a finite one."""
_Name = Annotated[str, Field(min_length=1, max_length=200)]
_Number = Annotated[float, Field(ge=-MOST, le=MOST, allow_inf_nan=False)]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class BenchRun(_Model):
    """What one run came to.

    Attributes:
        task: its task.
        behaviour: its clients' behaviour.
        strategy: its strategy.
        seed: its seed.
        rounds: that were run.
        numbers: by measure's key, in the unit shown, within `MOST`; None: the run has none.
    """

    task: _Name
    behaviour: _Name
    strategy: _Name
    seed: int
    rounds: int
    numbers: Mapping[str, _Number | None]

    @property
    def cell(self) -> Cell:
        """The row that it belongs to."""
        return Cell(self.task, self.behaviour, self.strategy)


class BenchResults(_Model):
    """All runs of a benchmark.

    Attributes:
        format: version of this file's form.
        quick: whether it is the short form.
        command: that did the runs.
        seeds: number of seeds.
        versions: of the packages, as the runs record them.
        titles: of tasks and behaviours, by name.
        metrics: each task's metric, as runs record it, by task.
        settings: that each row's runs were given, by row.
        skipped: rows that could not be run, with their reasons.
        failed: runs that failed, with theirs.
        runs: the others.
    """

    format: Literal[1] = 1
    quick: bool
    command: str
    seeds: Annotated[int, Field(ge=1)]
    versions: Mapping[str, str]
    titles: Mapping[str, str]
    metrics: Mapping[str, Mapping[str, Any]]
    settings: Mapping[str, Mapping[str, Any]]
    skipped: Mapping[str, str]
    failed: Mapping[str, str]
    runs: Sequence[BenchRun]

    @model_validator(mode="after")
    def _complete(self) -> Self:
        for cell in self.rows():
            if cell.task not in TASKS or cell.task not in self.metrics:
                raise ValueError(f"task '{cell.task}' is none of the design's, or has no metric")
            if not {cell.task, cell.behaviour} <= self.titles.keys() or row_name(cell) not in self.settings:
                raise ValueError(f"row '{row_name(cell)}' has no title, or no settings")
            if not isinstance(self.settings[row_name(cell)].get("rounds"), int):
                raise ValueError(f"row '{row_name(cell)}' has no number of rounds in its settings")
        if len({(run.cell, run.seed) for run in self.runs}) < len(self.runs):
            raise ValueError("a run stands there twice")
        return self

    def rows(self) -> tuple[Cell, ...]:
        """Return the rows that have a run, in their order."""
        return tuple(dict.fromkeys(run.cell for run in self.runs))

    def measures(self, task: str) -> tuple[Measure, ...]:
        """Return what was read off each run of a task."""
        return measures(task, Metric.of_record(dict(self.metrics[task])))

    def numbers(self, cell: Cell, key: str) -> dict[int, float]:
        """Return a measure's numbers of a row, by seed; seeds without one are missing."""
        return {
            run.seed: number for run in self.runs if run.cell == cell and (number := run.numbers.get(key)) is not None
        }

    def write(self, folder: Path) -> Path:
        """Write the file; return its path."""
        path = folder / RESULTS
        replace_file(path, (json.dumps(self.model_dump(mode="json"), indent=1, allow_nan=False) + "\n").encode())
        return path

    @classmethod
    def read(cls, path: Path) -> "BenchResults":
        """Return what a file holds.

        Raises:
            ConfigError: it is missing, too large or of another form; one line that names it.
        """
        try:
            if path.stat().st_size > MOST_BYTES:
                raise ConfigError(f"file '{path}' cannot be read: it has more than {MOST_BYTES:,} bytes")
            return cls.model_validate_json(path.read_bytes())
        except OSError as error:
            raise ConfigError(f"file '{path}' cannot be read: {error.strerror}") from None
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"])
            said = first["msg"].removeprefix("Value error, ")
            raise ConfigError(f"file '{path}' is not allowed: {f'{where}: ' if where else ''}{said}") from None


def titles_of(runs: Sequence[BenchRun]) -> dict[str, str]:
    """Return the lines about the tasks of these runs, and then about their behaviours, by name."""
    tasks, behaviours = (dict.fromkeys(getattr(run, kind) for run in runs) for kind in ("task", "behaviour"))
    return {name: TASKS[name].title for name in tasks} | {name: BEHAVIOURS[name].title for name in behaviours}


def row_name(cell: Cell) -> str:
    """Return a row's name in the results."""
    return f"{cell.task}, {cell.behaviour}, {cell.strategy}"


def measures(task: str, metric: Metric, short: Mapping[str, Any] | None = None) -> tuple[Measure, ...]:
    """Return what is read off each run of a task.

    Args:
        task: its name in the design.
        metric: its metric.
        short: settings that go before the design's.
    """
    settings, target = {**TASKS[task].settings, **(short or {})}, TASKS[task].target
    clients, planned = int(settings["clients"]), int(settings["rounds"])
    better: Literal["higher", "lower"] = "higher" if metric.higher_is_better else "lower"
    column, percent, digits = metric.column, metric.is_share, 1 if metric.is_share else 3
    to_target = column, target, metric.higher_is_better
    score, worst = (_at_end(late(key), planned) for key in (column, f"worst_decile_{column}"))
    return (
        Measure("kept", "clients that join at the end, %", _kept_at_end(clients, planned), percent=True, digits=0),
        Measure("stayed", "did not leave, %", stayed(clients), percent=True, digits=0),
        Measure("gm-appeal", "GM-Appeal", _at_end(late("gm_appeal"), planned)),
        Measure("score", metric.heading, score, percent, better, digits),
        Measure("worst", f"worst decile's {metric.heading}", worst, percent, better, digits),
        Measure("rounds-to", f"rounds to {target:g}", rounds_to(*to_target), False, "lower", 0),
        Measure("megabytes-to", f"MB to {target:g}", megabytes_to(*to_target), False, "lower", 1),
    )


def _at_end(of: Callable[[Lines], float | None], planned: int) -> Callable[[Lines], float | None]:
    """Return a reading at the planned end: a run that ended before is as in its last round."""
    return lambda lines: of(continued(lines, planned))


def _kept_at_end(clients: int, planned: int) -> Callable[[Lines], float | None]:
    """Return the same of the clients that join; a run that ended in a mandatory round does not tell."""
    reading = _at_end(kept(clients), planned)
    return lambda lines: None if lines and lines[-1].get("mandatory") else reading(lines)


def bench_run(cell: Cell, result: RunResult, metric: Metric, short: Mapping[str, Any] | None = None) -> BenchRun:
    """Return what a finished run came to; ``short``: settings that go before the design's."""
    found = {each.key: result.number(each) for each in measures(cell.task, metric, short)}
    numbers = {key: value if value is not None and abs(value) <= MOST else None for key, value in found.items()}
    place = {"task": cell.task, "behaviour": cell.behaviour, "strategy": cell.strategy}
    return BenchRun(**place, seed=result.seed, rounds=len(result.lines), numbers=numbers)
