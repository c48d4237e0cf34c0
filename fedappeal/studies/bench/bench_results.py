"""The benchmark's results: what the file of any study holds, with a row a cell of the design."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal, Self

from pydantic import model_validator

from fedappeal.protocol.metric import Metric
from fedappeal.studies.bench.design import LATE, OTHER_SEEDS, TASKS, Cell, cells
from fedappeal.studies.results import Row, StudyResults
from fedappeal.views.comparison.measures import Lines, Measure, continued, kept, late, stayed, training_megabytes

RESULTS = "results.json"
NAME = "bench"

Reading = Callable[[Lines], float | None]


class BenchResults(StudyResults):
    """All runs of a benchmark, by cell, with the settings they were given.

    Attributes:
        sources: of strategies of other packages, the first 16 hex digits of the SHA-256 of their files, by name.
    """

    sources: Mapping[str, str] = {}

    @model_validator(mode="after")
    def _complete(self) -> Self:
        for row in self.rows:
            if (task := Cell.of_key(row.name).task) not in self.metrics and row.seeds:
                raise ValueError(f"task '{task}' has no metric")
            if row.seeds and not row.settings:
                raise ValueError(f"row '{row.name}' has no settings")
        return self

    def cells(self) -> dict[Cell, Row]:
        """Return the rows with enough seeds to show, in their order, by cell: ten, or all asked for."""
        enough = min(self.seeds, OTHER_SEEDS)
        return {Cell.of_key(row.name): row for row in self.rows if not self.lacking(row.name, enough)}

    def measures_of(self, task: str) -> tuple[Measure, ...]:
        """Return the measures of a task's runs."""
        return measures(task, Metric.of_record(dict(self.metrics[task])))

    def numbers(self, cell: Cell, key: str) -> dict[int, float]:
        """Return a measure's numbers of a row, by seed; seeds without one are missing."""
        row = next((row for row in self.rows if row.name == cell.key), None)
        values = zip(row.seeds, row.ours.get(key, ()), strict=False) if row else ()
        return {seed: number for seed, number in values if number is not None}

    def with_rows(self, new: "BenchResults") -> "BenchResults":
        """Return the results with new runs of the same design, in its order."""
        names = [*(cell.key for cell in cells()), *(row.name for row in (*self.rows, *new.rows))]
        commands = dict.fromkeys([*self.command.splitlines(), new.command])
        return self.joined(new, names, command="\n".join(commands), sources={**self.sources, **new.sources})

    @classmethod
    def of_file(cls, path: Path) -> "BenchResults":
        """Return a file's results; raise a one-line `ConfigError` as `StudyResults.read`."""
        return cls.read(path, NAME)


def measures(task: str, metric: Metric, rounds: int = 0) -> tuple[Measure, ...]:
    """Return the measures of a task's runs, over their last free rounds.

    Regret is the mean over all clients of what one gives up by taking the shared model where its own serves it
    better, in the task's metric: with individual rationality (Donahue and Kleinberg, AAAI 2021) it would be 0.

    Args:
        task: its name in the design.
        metric: its metric.
        rounds: number that was planned: a run that ended before is as in its last round; 0: none ended before.
    """
    clients = int(TASKS[task].settings["clients"])
    better: Literal["higher", "lower"] = "higher" if metric.higher_is_better else "lower"
    column, percent, digits = metric.column, metric.is_share, 1 if metric.is_share else 3

    def at_end(of: Reading) -> Reading:
        return lambda lines: of(continued(lines, rounds))

    score, preferred, worst = (at_end(late(f"{of}{column}", LATE)) for of in ("", "preferred_", "worst_decile_"))

    def regret(lines: Lines) -> float | None:
        shared, chosen = score(lines), preferred(lines)
        return None if shared is None or chosen is None else (chosen - shared) * (1 if better == "higher" else -1)

    def joined(lines: Lines) -> float | None:
        """Return the share that joined; None for a run ended in a mandatory round.

        Such a run does not tell.
        """
        return None if lines and lines[-1].get("mandatory") else at_end(kept(clients, LATE))(lines)

    return (
        Measure("kept", "joined %", joined, percent=True, digits=0),
        Measure("stayed", "did not leave %", stayed(clients), percent=True, digits=0),
        Measure("score", metric.heading, score, percent, better, digits),
        Measure("regret", "regret", regret, percent, "lower", digits),
        Measure("worst", "worst 10 %", worst, percent, better, digits),
        Measure("megabytes", "MB", lambda lines: sum(training_megabytes(lines)), False, "lower", 1),
    )
