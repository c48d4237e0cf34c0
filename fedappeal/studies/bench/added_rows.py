"""Rows that known results lack: they alone are run, and join the known ones."""

from collections.abc import Mapping, Sequence
from typing import Any

from fedappeal.settings.config import ConfigError
from fedappeal.studies.bench.design import BEHAVIOURS, Cell, cells
from fedappeal.studies.bench.results import BenchResults, row_name, titles_of


def missing(
    rows: Sequence[Cell], known: BenchResults, seeds: int, short: Mapping[str, Any] | None = None
) -> tuple[Cell, ...]:
    """Return those of the rows that known results lack, or have not all seeds of.

    Args:
        rows: what is asked for.
        known: results of earlier runs.
        seeds: number of seeds that is asked for.
        short: settings that go before the design's.

    Raises:
        ConfigError: the known rows were run with other seeds or settings, or none of the rows is missing.
    """
    if seeds != known.seeds:
        raise ConfigError(f"seeds = {seeds} is not allowed: the known results have {known.seeds}")
    for cell in known.rows():
        if cell.behaviour not in BEHAVIOURS or known.settings[row_name(cell)] != {**cell.settings, **(short or {})}:
            raise ConfigError(f"known: row '{row_name(cell)}' was run with other settings than the design has now")
    if not (found := tuple(cell for cell in rows if not _whole(known, cell))):
        raise ConfigError("known: these results have all rows")
    return found


def joined(known: BenchResults, new: BenchResults) -> BenchResults:
    """Return known results with new ones of the same design: the design's rows first, in its order.

    What new results have of a row stands in place of what the known ones have of it.
    """
    again = {row_name(cell) for cell in new.rows()} | {*new.skipped} | {row for row, _ in _by_row(new.failed)}
    kept = [run for run in known.runs if row_name(run.cell) not in again]
    all_runs = [*kept, *new.runs]
    order = {cell: place for place, cell in enumerate(dict.fromkeys([*cells(), *(run.cell for run in all_runs)]))}
    runs = sorted(all_runs, key=lambda run: (order[run.cell], run.seed))
    settings = {**known.settings, **new.settings}
    packages = {**known.versions, **new.versions}
    return BenchResults(
        quick=new.quick,
        command=f"{known.command}\n{new.command}",
        seeds=new.seeds,
        versions={name: _both(known.versions.get(name), new.versions.get(name)) for name in packages},
        titles=titles_of(runs),
        metrics={**known.metrics, **new.metrics},
        settings={row: settings[row] for row in dict.fromkeys([*map(row_name, order), *settings]) if row in settings},
        skipped={row: why for row, why in known.skipped.items() if row not in again} | dict(new.skipped),
        failed={run: known.failed[run] for row, run in _by_row(known.failed) if row not in again} | dict(new.failed),
        runs=runs,
    )


def _whole(known: BenchResults, cell: Cell) -> bool:
    return len({run.seed for run in known.runs if run.cell == cell}) == known.seeds


def _by_row(failed: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return each failed run's row and name."""
    return [(run.rpartition(", seed ")[0], run) for run in failed]


def _both(known: str | None, new: str | None) -> str:
    """Return a package's versions in both."""
    return ", ".join(dict.fromkeys(each for each in (known, new) if each))
