"""Runs of any folders, read for comparison."""

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from fedappeal.core.registry import STRATEGIES
from fedappeal.protocol.foreign_text import all_printable
from fedappeal.protocol.keys import RUN_KEY
from fedappeal.protocol.metric import ACCURACY, Metric
from fedappeal.record.lines import CONFIG, HISTORY
from fedappeal.record.reader import SUMMED, Record
from fedappeal.settings.config import ConfigError
from fedappeal.settings.rounds import AUTO
from fedappeal.system.files import path_of
from fedappeal.system.wording import natural_order
from fedappeal.views.comparison.measures import Lines


class HasPath(Protocol):
    """A run of the Python interface: it knows its folder."""

    @property
    def path(self) -> Path:
        """The run's folder."""


_COUNTED = ("round", "asked", "joined")
"""What each line of a history counts."""
_OTHERS_COUNTED = (*(key for key in SUMMED if key != "seconds"), "surplus", "evaluated", "expected")
"""What a line counts besides; runs of earlier versions have not all of these."""

_LARGEST = 1e300
"""Of finite floats: sums of larger ones overflow."""

RunLike = str | os.PathLike[str] | HasPath


@dataclass(frozen=True, eq=False)
class RecordedRun:
    """One run, as its folder records it.

    Attributes:
        name: its folder without what all have in common.
        settings: all that it was run with, in the recorded order.
        lines: its history so far; at least one line.
        early_end: why it ended before its last round; empty where it did not.
        finished: whether it is over; else it is under way, or was interrupted.
        metric: the task's primary metric.
        damage: one line for each of its files that does not fit its checksums.
    """

    name: str
    settings: Mapping[str, Any]
    lines: Lines
    early_end: str = ""
    finished: bool = True
    metric: Metric = ACCURACY
    damage: tuple[str, ...] = ()

    @classmethod
    def of(cls, record: Record, name: str, settings: Mapping[str, Any], lines: Lines) -> "RecordedRun":
        """Return the run of a folder, with its name, settings and lines as they were checked."""
        last, end = int(lines[-1]["round"]), record.standing.end or {}
        reason = str(end.get("reason", "")) if int(end.get("round", 0)) >= last else ""
        finished = bool(reason) or last >= int(settings["rounds"])
        return cls(name, settings, lines, reason, finished, record.metric, tuple(record.damage.values()))

    @property
    def task(self) -> str:
        """The run's task."""
        return str(self.settings["task"])

    @property
    def seed(self) -> int:
        """The seed of all its draws."""
        return int(self.settings["seed"])

    @property
    def policy(self) -> str:
        """Its participation policy; ``auto``: the default of a strategy that is not ours."""
        policy, strategy = str(self.settings.get("participation", AUTO)), self.settings["strategy"]
        return STRATEGIES.load(strategy).policy if policy == AUTO and strategy in STRATEGIES.built_in else policy

    @property
    def last_round(self) -> int:
        """The last round of its history."""
        return int(self.lines[-1]["round"])

    @property
    def measured(self) -> str:
        """How many clients measured the last evaluated model, ``2 of 3``.

        Empty if all did.
        """
        last_one = next((line for line in reversed(self.lines) if line.get("expected")), {})
        asked, answered = last_one.get("expected", 0), last_one.get("evaluated", 0)
        return f"{answered} of {asked}" if answered < asked else ""

    def until(self, server_round: int) -> "RecordedRun":
        """Return the run as of a round."""
        return replace(self, lines=[line for line in self.lines if int(line["round"]) <= server_round])


def read_runs(runs: RunLike | Iterable[RunLike]) -> tuple[list[RecordedRun], list[str]]:
    """Read runs from their folders, or from folders that hold such folders.

    Returns:
        The runs in the order in which they are named, those of one folder by its sub-folders' names; and the names of
        runs under such a folder that have no finished round yet.

    Raises:
        ConfigError: nothing is named, a folder holds no run, or a run is named twice or has no finished round.
    """
    folders = runs if isinstance(runs, Iterable) and not isinstance(runs, str) else [runs]
    paths = [path_of("runs", getattr(run, "path", run)) for run in folders]
    if not paths:
        raise ConfigError("runs = [] is not allowed: at least one folder of a run")
    run_paths = [path for folder in paths for path in find_runs(folder)]
    read, empty = [], []
    for path, name in zip(run_paths, _names(run_paths), strict=True):
        record = Record(path)
        record.check()
        settings = _settings(record)
        if lines := _history(record):
            read.append(RecordedRun.of(record, name, settings, lines))
        elif path in paths:
            raise ConfigError(record.damage.get(HISTORY, f"'{path}' has no finished round to compare"))
        else:
            empty.append(name)
    if not read:
        raise ConfigError(f"'{paths[0]}' holds no run with a finished round")
    return read, empty


def find_runs(folder: Path) -> list[Path]:
    """Return the folders of all runs below a folder, in natural order.

    Or a run's folder itself; ``seed-2`` before ``seed-10``.

    Raises:
        ConfigError: there is none.
    """
    if (folder / CONFIG).exists():
        return [folder]
    if not folder.is_dir():
        raise ConfigError(f"'{folder}' is not the folder of a run: there is no such folder")
    runs: list[Path] = []
    for path, folders, files in os.walk(folder):
        if CONFIG in files and RUN_KEY in Record(Path(path)).config:  # models have a config.json too
            runs.append(Path(path))
            folders.clear()  # what a run leaves below its folder is no run
    if not runs:
        raise ConfigError(
            f"'{folder}' is not the folder of a run and holds none: no run's {CONFIG} is in or below it"
        )
    return sorted(runs, key=lambda path: [natural_order(name) for name in path.relative_to(folder).parts])


def _settings(record: Record) -> Mapping[str, Any]:
    settings: dict[str, Any] = all_printable(record.settings)
    for key, kind in {"task": str, "strategy": str, "seed": int, "rounds": int}.items():
        if type(settings[key]) is not kind:
            raise ConfigError(
                f"'{record.path}' is not the folder of a run: {key} = {settings[key]!r} in its {CONFIG}"
            )
    return settings


def _history(record: Record) -> list[dict[str, Any]]:
    """Return the lines of a run's history.

    Raises:
        ConfigError: they are damaged.
    """
    lines = record.history
    for number, line in enumerate(lines, start=1):
        missing = [key for key in _COUNTED if not isinstance(line.get(key), int)]
        missing += [key for key in _OTHERS_COUNTED if not isinstance(line.get(key, 0), int)]
        odd = [key for key, value in line.items() if key != "failures" and not _is_figure(value)]
        if faults := missing + odd:
            raise ConfigError(
                f"file '{record.path / HISTORY}' cannot be read: line {number}: {faults[0]} is no such number"
            )
    return lines


def _is_figure(value: object) -> bool:
    """Whether a value of the history is a usual number, or null."""
    if isinstance(value, float):
        return math.isinf(value) or not abs(value) > _LARGEST  # that of a model that diverged may be no number
    return value is None or (isinstance(value, int) and abs(value) < 2**63)


def _names(paths: Sequence[Path]) -> list[str]:
    absolute = [Path(os.path.realpath(path)) for path in paths]
    if twice := next((path for n, path in enumerate(absolute) if path in absolute[:n]), None):
        raise ConfigError(f"a run is named twice: '{twice}'")
    if len(absolute) == 1:
        return [absolute[0].name]
    common = Path(os.path.commonpath([path.parent for path in absolute]))
    return [str(path.relative_to(common)) for path in absolute]
