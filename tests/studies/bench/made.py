"""Results of a benchmark whose numbers are written by hand."""

from fedappeal.protocol.metric import ACCURACY
from fedappeal.studies.bench.design import BEHAVIOURS, TASKS, Cell
from fedappeal.studies.bench.results import BenchResults, BenchRun, row_name

KEYS = ("kept", "stayed", "gm-appeal", "score", "worst", "rounds-to", "megabytes-to")


def made(
    kept: dict[str, list[float]], behaviour: str = "appeal", tasks: tuple[str, ...] = ("digits",)
) -> BenchResults:
    """Return results in which strategies keep these clients, in per cent by seed; all else is equal."""
    runs = []
    for task in tasks:
        for strategy, values in kept.items():
            for seed, value in enumerate(values):
                numbers = {**dict.fromkeys(KEYS, 1.0), "kept": value, "rounds-to": None}
                runs.append(
                    BenchRun(
                        **{"task": task, "behaviour": behaviour, "strategy": strategy},
                        **{"seed": seed, "rounds": 10, "numbers": numbers},
                    )
                )
    cells = [Cell(task, behaviour, strategy) for task in tasks for strategy in kept]
    return BenchResults(
        quick=False,
        command="fedappeal bench",
        seeds=len(next(iter(kept.values()))),
        versions={"torch": "2"},
        titles={**{task: TASKS[task].title for task in tasks}, behaviour: BEHAVIOURS[behaviour].title},
        metrics={task: ACCURACY.as_record() for task in tasks},
        settings={row_name(cell): cell.settings for cell in cells},
        skipped={},
        failed={},
        runs=runs,
    )
