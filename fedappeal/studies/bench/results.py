"""The benchmark's results: what the file of any study holds, with a row a cell of the design."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import model_validator

from fedappeal.protocol.metric import Metric
from fedappeal.studies.bench.design import BEHAVIOURS, TASKS, Cell, cells
from fedappeal.studies.results import Row, StudyResults
from fedappeal.views.comparison.measures import Lines, Measure, continued, kept, late, megabytes_to, rounds_to, stayed

RESULTS = "results.json"
NAME = "bench"


class BenchResults(StudyResults):
    """All runs of a benchmark; a row is named by its cell, and its settings are what the runs were given."""

    @model_validator(mode="after")
    def _complete(self) -> Self:
        for cell in map(Cell.named, (row.name for row in self.rows)):
            if cell.task not in TASKS or cell.task not in self.metrics:
                raise ValueError(f"task '{cell.task}' is none of the design's, or has no metric")
            if cell.behaviour not in BEHAVIOURS or str(cell) not in self.settings:
                raise ValueError(f"behaviour '{cell.behaviour}' is none of the design's, or '{cell}' has no settings")
            if not isinstance(self.settings[str(cell)].get("rounds"), int):
                raise ValueError(f"row '{cell}' has no number of rounds in its settings")
        return self

    def cells(self) -> dict[Cell, Row]:
        """Return the rows that have a run, in their order, by cell."""
        return {Cell.named(row.name): row for row in self.rows if row.seeds}

    def titles(self) -> dict[str, str]:
        """Return the lines about the tasks of these rows, and then about their behaviours, by name."""
        tasks = {cell.task: TASKS[cell.task].title for cell in self.cells()}
        return tasks | {cell.behaviour: BEHAVIOURS[cell.behaviour].title for cell in self.cells()}

    def measures_of(self, task: str) -> tuple[Measure, ...]:
        """Return what was read off each run of a task."""
        return measures(task, Metric.of_record(dict(self.metrics[task])))

    def numbers(self, cell: Cell, key: str) -> dict[int, float]:
        """Return a measure's numbers of a row, by seed; seeds without one are missing."""
        row = next((row for row in self.rows if row.name == str(cell)), None)
        values = zip(row.seeds, row.ours.get(key, ()), strict=False) if row else ()
        return {seed: number for seed, number in values if number is not None}

    def with_rows(self, new: "BenchResults") -> "BenchResults":
        """Return these results with new ones of the same design: the design's rows first, in its order."""
        names = [*map(str, cells()), *self.settings, *self.skipped, *new.settings, *new.skipped]
        return self.joined(new, names, quick=new.quick, command=f"{self.command}\n{new.command}")

    @classmethod
    def of_file(cls, path: Path) -> "BenchResults":
        """Return what a file holds; raise a one-line `ConfigError` as `StudyResults.read`."""
        return cls.read(path, NAME)


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
