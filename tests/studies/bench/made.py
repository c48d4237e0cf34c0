"""Results of a benchmark whose numbers are written by hand."""

from typing import Any

from fedappeal.protocol.metric import ACCURACY
from fedappeal.studies.bench.bench_results import NAME, BenchResults
from fedappeal.studies.bench.design import CORE, TASKS, Cell
from fedappeal.studies.results import Row

KEYS = ("kept", "stayed", "score", "regret", "worst", "megabytes")


def made(kept: dict[str, list[list[float]]], task: str = "digits", behaviour: str = CORE) -> BenchResults:
    """Return results in which strategies keep these clients, in per cent by level and seed; all else is equal."""
    levels = TASKS[task].goodwill if behaviour == CORE else (TASKS[task].shown,)
    cells = {
        Cell(task, behaviour, level, strategy): values
        for strategy, by_level in kept.items()
        for level, values in zip(levels, by_level, strict=True)
    }
    rows = [
        Row(
            name=cell.key,
            group=cell.place,
            paper={},
            seeds=tuple(range(len(values))),
            rounds=(10,) * len(values),
            ours={**dict.fromkeys(KEYS, (1.0,) * len(values)), "kept": tuple(values)},
            settings=cell.settings,
        )
        for cell, values in cells.items()
    ]
    return BenchResults(
        experiment=NAME,
        source="",
        command="fedappeal bench",
        quick=False,
        seeds=max(map(len, cells.values())),
        measures={key: key for key in KEYS},
        rows=tuple(rows),
        figure=True,
        metrics={task: ACCURACY.as_record()},
        versions={"torch": ("2",)},
    )


def changed(results: BenchResults, cell: Cell, **fields: Any) -> BenchResults:
    """Return results with other fields in one row."""
    rows = [row.model_copy(update=fields) if row.name == cell.key else row for row in results.rows]
    return results.model_copy(update={"rows": tuple(rows)})


def with_ours(results: BenchResults, cell: Cell, **ours: tuple[float | None, ...]) -> BenchResults:
    """Return results in which a strategy has other numbers."""
    (row,) = (row for row in results.rows if row.name == cell.key)
    return changed(results, cell, ours={**row.ours, **ours})
