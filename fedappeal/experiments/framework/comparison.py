"""Comparison: any runs side by side, from what their folders hold."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedappeal.experiments.framework.measures import LATE, Line, Lines, Measure, joined_share, last, late, total
from fedappeal.experiments.framework.plots import COLOURS, new_figure
from fedappeal.experiments.framework.table import NONE, Table
from fedappeal.protocol.config import ConfigError
from server.run_folder import HISTORY, how_it_ended, read_config, read_lines

_RESULTS = (
    ("gm_appeal", "GM-Appeal", False, 3),
    ("accuracy", "test accuracy %", True, 1),
    ("worst_decile_accuracy", "worst decile's accuracy %", True, 1),
    ("preferred_accuracy", "preferred-model accuracy %", True, 1),
    ("loss", "test loss", False, 3),
    ("priority_accuracy", "priority clients' accuracy %", True, 1),
)


def _measures() -> tuple[Measure, ...]:
    found = [Measure("rounds", "rounds", last("round"), digits=0)]
    for prefix, whose in (("", ""), ("unseen_", "unseen: ")):
        for name, title, percent, digits in _RESULTS:
            key = prefix + name
            found.append(Measure(key, f"{whose}{title}", last(key), percent, digits=digits))
            found.append(
                Measure(f"{key}-late", f"{whose}{title}, last {LATE} rounds", late(key), percent, digits=digits)
            )
    found += [
        Measure("joined", "joined, % of those asked", joined_share(), percent=True, digits=1),
        Measure(
            "joined-late", f"joined, % of those asked, last {LATE} rounds", joined_share(LATE), percent=True, digits=1
        ),
        Measure("left", "clients that left", total("left"), digits=0),
        Measure("failed", "failed replies", total("failed"), digits=0),
        Measure("up", "MB up", lambda lines: _megabytes(lines, "bytes_up"), digits=1),
        Measure("down", "MB down", lambda lines: _megabytes(lines, "bytes_down"), digits=1),
        Measure("seconds", "seconds in all", total("seconds"), digits=1),
    ]
    return tuple(found)


def _megabytes(lines: Lines, key: str) -> float | None:
    found = total(key)(lines)
    return None if found is None else found / 1e6


@dataclass(frozen=True)
class Compared:
    """One run of several.

    Attributes:
        name: its path without what all have in common.
        settings: what it was run with.
        lines: its history so far.
        early_end: why it ended before its last round; empty where it did not.
    """

    name: str
    settings: Mapping[str, Any]
    lines: Lines
    early_end: str = ""

    @property
    def measured(self) -> str:
        """The clients that measured the last evaluated model, ``2 of 3``; empty where all did."""
        last_one = next((line for line in reversed(self.lines) if line.get("expected")), {})
        asked, answered = last_one.get("expected", 0), last_one.get("evaluated", 0)
        return f"{answered} of {asked}" if answered < asked else ""


def read_runs(paths: Sequence[Path]) -> list[Compared]:
    """Read the folders of at least one run.

    Raises:
        ConfigError: a folder that holds no run, or no finished round.
    """
    names = _names(paths)
    runs = []
    for path, name in zip(paths, names, strict=True):
        settings = dict(read_config(path)["settings"])
        lines = read_lines(path / HISTORY)
        if not lines:
            raise ConfigError(f"'{path}' has no finished round to compare")
        end = how_it_ended(path) or {}
        runs.append(Compared(name, settings, lines, str(end.get("reason", ""))))
    return runs


def _names(paths: Sequence[Path]) -> list[str]:
    absolute = [path.absolute() for path in paths]
    if len(set(absolute)) < len(absolute):
        raise ConfigError("a run is named twice")
    if len(absolute) == 1:
        return [absolute[0].name]
    common = Path(os.path.commonpath([path.parent for path in absolute]))
    return [str(path.relative_to(common)) for path in absolute]


def comparison_tables(runs: Sequence[Compared]) -> list[Table]:
    """Return the results side by side, and the settings that differ."""
    header = ("", *(run.name for run in runs))
    rows = []
    for measure in _measures():
        values = [measure.number(run.lines) for run in runs]
        if any(value is not None for value in values):
            cells = (NONE if value is None else f"{value:.{measure.digits}f}" for value in values)
            rows.append((measure.title, *cells))
    for title, remarks in (
        ("ended early", [run.early_end for run in runs]),
        ("clients that measured the last model", [run.measured for run in runs]),
    ):
        if any(remarks):
            rows.append((title, *(remark or NONE for remark in remarks)))
    tables = [Table("Results", header, tuple(rows))]
    if different := _different(runs):
        tables.append(Table("Settings that differ", header, different))
    return tables


def _different(runs: Sequence[Compared]) -> tuple[tuple[str, ...], ...]:
    keys = sorted({key for run in runs for key in run.settings} - {"out", "resume", "schedule-rounds"})
    values = {key: [run.settings.get(key) for run in runs] for key in keys}
    return tuple(
        (key, *(NONE if value is None else str(value) for value in found))
        for key, found in values.items()
        if any(value != found[0] for value in found)
    )


def _joined(line: Line) -> float | None:
    return line["joined"] / line["asked"] if line["asked"] else None


def draw_comparison(runs: Sequence[Compared], path: Path) -> None:
    """Draw GM-Appeal, accuracy, participation and traffic over the rounds.

    Args:
        runs: the runs.
        path: the picture, ``.png`` or ``.svg``.

    Raises:
        ConfigError: another ending.
    """
    if path.suffix not in (".png", ".svg"):
        raise ConfigError(f"plot = '{path}' is not allowed: a file that ends in .png or .svg")
    figure = new_figure(12, 6)
    panels = figure.subplots(2, 2).flatten()
    for run, colour in zip(runs, COLOURS * (1 + len(runs) // len(COLOURS)), strict=False):
        rounds = [line["round"] for line in run.lines]
        traffic = [sum(line[key] for key in ("bytes_up", "bytes_down")) / 1e6 for line in run.lines]
        curves = (
            [line.get("gm_appeal") for line in run.lines],
            [None if "accuracy" not in line else 100 * line["accuracy"] for line in run.lines],
            [None if (share := _joined(line)) is None else 100 * share for line in run.lines],
            [sum(traffic[: n + 1]) for n in range(len(traffic))],
        )
        for axes, values in zip(panels, curves, strict=True):
            known = [(r, v) for r, v in zip(rounds, values, strict=True) if v is not None]
            axes.plot([r for r, _ in known], [v for _, v in known], color=colour, label=run.name, linewidth=1.4)
    labels = ("GM-Appeal", "test accuracy %", "joined, % of those asked", "MB up and down, in all")
    for axes, label in zip(panels, labels, strict=True):
        axes.set(xlabel="round", ylabel=label)
        axes.grid(alpha=0.3)
    handles, names = panels[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=min(len(names), 4), frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=90)
