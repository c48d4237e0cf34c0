"""Runs that are rows of a file: what is there is not run again."""

import json
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

Record = dict[str, Any]


def resumed(
    path: Path, rows: Iterable[Record], run: Callable[[Record], Mapping[str, Any]], jobs: int = 1
) -> list[Record]:
    """Run the rows that a JSON Lines file lacks, and append them; return all of it.

    Args:
        path: the file; it may not be there yet.
        rows: what identifies each run; a line of the file has the same items, and the run's results.
        run: returns a row's results.
        jobs: rows at once.
    """
    records = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    missing = [row for row in rows if not any(row.items() <= record.items() for record in records)]
    with ProcessPoolExecutor(jobs) as workers, path.open("a") as file:
        for row, results in zip(missing, workers.map(run, missing), strict=True):
            records.append({**row, **results})
            print(json.dumps(records[-1]), file=file, flush=True)
    return records
