"""Results of a benchmark whose numbers are written by hand."""

from typing import Any

from fedappeal.protocol.metric import ACCURACY
from fedappeal.studies.bench.design import Cell
from fedappeal.studies.bench.results import NAME, BenchResults
from fedappeal.studies.results import Row

KEYS = ("kept", "stayed", "gm-appeal", "score", "worst", "rounds-to", "megabytes-to")


def made(
    kept: dict[str, list[float]], behaviour: str = "appeal", tasks: tuple[str, ...] = ("digits",)
) -> BenchResults:
    """Return results in which strategies keep these clients, in per cent by seed; all else is equal."""
    cells = {Cell(task, behaviour, strategy): values for task in tasks for strategy, values in kept.items()}
    rows = [
        Row(
            name=str(cell),
            group=f"{cell.task}, {cell.behaviour}",
            paper={},
            seeds=tuple(range(len(values))),
            rounds=(10,) * len(values),
            ours={
                **dict.fromkeys(KEYS, (1.0,) * len(values)),
                "kept": tuple(values),
                "rounds-to": (None,) * len(values),
            },
        )
        for cell, values in cells.items()
    ]
    return BenchResults(
        experiment=NAME,
        source="",
        command="fedappeal bench",
        quick=False,
        seeds=len(next(iter(kept.values()))),
        measures={key: key for key in KEYS},
        rows=tuple(rows),
        figure=True,
        diverged={},
        skipped={},
        failed={},
        settings={str(cell): cell.settings for cell in cells},
        metrics={task: ACCURACY.as_record() for task in tasks},
        versions={"torch": ("2",)},
    )


def changed(results: BenchResults, cell: Cell, **fields: Any) -> BenchResults:
    """Return results with other fields in one row."""
    rows = [row.model_copy(update=fields) if row.name == str(cell) else row for row in results.rows]
    return results.model_copy(update={"rows": tuple(rows)})


def with_kept(results: BenchResults, cell: Cell, kept: tuple[float | None, ...]) -> BenchResults:
    """Return results in which a strategy keeps other clients."""
    (row,) = (row for row in results.rows if row.name == str(cell))
    return changed(results, cell, ours={**row.ours, "kept": kept})
