"""A comparison of groups of runs that differ in the seed alone.

Their means, and paired differences from a baseline.
"""

import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any, Protocol

from fedappeal.core.registry import STRATEGIES
from fedappeal.protocol.foreign_text import all_printable
from fedappeal.protocol.keys import RUN_KEY
from fedappeal.protocol.metric import ACCURACY, Metric
from fedappeal.record.lines import CONFIG, HISTORY
from fedappeal.record.reader import SUMMED, Record
from fedappeal.settings.config import ConfigError, RunConfig
from fedappeal.settings.rounds import AUTO
from fedappeal.system.wording import natural_order, plural
from fedappeal.views.comparison.measures import JOINED, LATE, ROUNDS, Lines, Measure, run_measures
from fedappeal.views.comparison.statistics import Difference, Interval


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
    folders = [runs] if isinstance(runs, str | os.PathLike) or hasattr(runs, "path") else list(runs)
    paths = [Path(run if isinstance(run, str | os.PathLike) else run.path) for run in folders]
    if not paths:
        raise ConfigError("runs = [] is not allowed: at least one folder of a run")
    run_paths = [path for folder in paths for path in find_runs(folder)]
    read, empty = [], []
    for path, name in zip(run_paths, _names(run_paths), strict=True):
        record = Record(path)
        record.check()
        settings = _settings(record)
        if lines := _history(record):
            read.append(_recorded(record, name, settings, lines))
        elif path in paths:
            raise ConfigError(f"'{path}' has no finished round to compare")
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
    for key in ("seed", "rounds"):
        if type(settings[key]) is not int:
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


def _recorded(record: Record, name: str, settings: Mapping[str, Any], lines: Lines) -> RecordedRun:
    last = int(lines[-1]["round"])
    end = record.standing.end or {}
    reason = str(end.get("reason", "")) if int(end.get("round", 0)) >= last else ""
    finished = bool(reason) or last >= int(settings["rounds"])
    return RecordedRun(name, settings, lines, reason, finished, record.metric, tuple(record.damage.values()))


def _names(paths: Sequence[Path]) -> list[str]:
    absolute = [Path(os.path.realpath(path)) for path in paths]
    if twice := next((path for n, path in enumerate(absolute) if path in absolute[:n]), None):
        raise ConfigError(f"a run is named twice: '{twice}'")
    if len(absolute) == 1:
        return [absolute[0].name]
    common = Path(os.path.commonpath([path.parent for path in absolute]))
    return [str(path.relative_to(common)) for path in absolute]


_NEVER = frozenset({"seed", "out", "resume", "schedule-rounds", "start-timeout", "start-after"})
"""Settings that make no group: the seed, and what says where and when a run takes place."""
_FIRST = ("task", "strategy")
RUN = "run"
"""What stands for a setting where each run is a group of its own."""


def used_settings(recorded: Mapping[str, Any]) -> dict[str, str]:
    """Return the settings that a run used, as texts; 1.0 reads as 1.

    A run records the settings of its plug-ins, then the general ones, then those that were given for plug-ins that it
    does not use; the last are left out. In a record of another order all are taken as used.
    """
    keys = list(recorded)
    general = [n for n, key in enumerate(keys) if "." not in key]
    in_order = keys[general[0]] == "task" and general == list(range(general[0], general[-1] + 1))
    unused = set(keys[general[-1] + 1 :]) if in_order else set()
    return {key: text_of(value) for key, value in recorded.items() if key not in unused}


def text_of(value: Any) -> str:
    """Return a setting's value as one writes it."""
    if isinstance(value, str):
        return value or "''"
    if isinstance(value, float) and value.is_integer() and math.isfinite(value):
        return str(int(value))
    return json.dumps(value, sort_keys=True)


@dataclass(frozen=True, eq=False)
class Group:
    """Runs that differ in their seeds alone.

    Attributes:
        task: what they learned.
        settings: the settings by which they differ from the other groups, ``(key, value)``; never empty.
        runs: at least one.
        names_task: whether the name says the task too: there are groups of others.
    """

    task: str
    settings: tuple[tuple[str, str], ...]
    runs: tuple[RecordedRun, ...]
    names_task: bool = False

    @property
    def label(self) -> str:
        """Its name in legends and tables: ``maxfl maxfl.server-lr=0.5``."""
        return " ".join(value if key == "strategy" else f"{key}={value}" for key, value in self.settings)

    @property
    def name(self) -> str:
        """Its name among all groups: ``strategy=maxfl maxfl.server-lr=0.5``."""
        settings = (*([("task", self.task)] if self.names_task else []), *self.settings)
        return " ".join(f"{key}={value}" for key, value in settings)

    @property
    def policies(self) -> str:
        """The participation policies of its runs; ``auto``: the default of a strategy that is not ours."""
        return ", ".join(dict.fromkeys(run.policy for run in self.runs))

    @property
    def seeds(self) -> list[int]:
        """The seeds of its runs, each once."""
        return sorted({run.seed for run in self.runs})

    def is_called(self, name: str) -> bool:
        """Whether each word of a name is a setting, ``strategy=maxfl``, or its value."""
        settings = (("task", self.task), *self.settings)
        words = {f"{key}={value}" for key, value in settings} | {value for _, value in settings}
        return all(word in words for word in name.split())

    def by_seed(self, measure: Measure) -> dict[int, float]:
        """Return a measure's finite numbers by seed; runs of one seed by their mean."""
        numbers: dict[int, list[float]] = {}
        for run in self.runs:
            value = measure.of(run.lines)
            if value is not None and math.isfinite(value):
                numbers.setdefault(run.seed, []).append(value)
        return {seed: fmean(values) for seed, values in sorted(numbers.items())}


def policies_differ(groups: Sequence[Group]) -> bool:
    """Whether clients decide by other policies in one group than in another."""
    return len({group.policies for group in groups}) > 1


def group_runs(runs: Sequence[RecordedRun], each_run: bool = False) -> list[tuple[Group, ...]]:
    """Return the groups of each task, in the order of their first runs.

    Within a task, runs are told apart by the settings of which two of them have different values. A setting that some
    runs do not have (of a plug-in that they do not use) tells only those apart that have it.

    Args:
        runs: at least one.
        each_run: make each run a group of its own, named by its folder.
    """
    tasks: dict[str, list[RecordedRun]] = {}
    for run in runs:
        tasks.setdefault(run.task, []).append(run)
    return [_of_task(members, each_run, len(tasks) > 1) for members in tasks.values()]


def _of_task(runs: Sequence[RecordedRun], each_run: bool, names_task: bool) -> tuple[Group, ...]:
    used = [{RUN: run.name} if each_run else used_settings(run.settings) for run in runs]
    differing = _differing(used) or ([RUN] if each_run else ["strategy"])
    groups: dict[tuple[tuple[str, str], ...], list[RecordedRun]] = {}
    for run, settings in zip(runs, used, strict=True):
        key = tuple((name, settings[name]) for name in differing if name in settings)
        groups.setdefault(key or (("strategy", settings["strategy"]),), []).append(run)
    return tuple(Group(runs[0].task, key, tuple(members), names_task) for key, members in groups.items())


def _differing(used: Sequence[Mapping[str, str]]) -> list[str]:
    """Return the keys with several values: task and strategy, other general ones, plug-ins'."""
    values: dict[str, set[str]] = {}
    for settings in used:
        for key in settings.keys() - _NEVER:
            values.setdefault(key, set()).add(settings[key])
    order = {key: n for n, key in enumerate((*_FIRST, *RunConfig.keys()))}
    differing = (key for key, texts in values.items() if len(texts) > 1)
    return sorted(differing, key=lambda key: ("." in key, order.get(key, len(order)), key))


def choose_baseline(groups: Sequence[Group], name: str) -> Group:
    """Return the baseline group: the named one, else FedAvg's, else the first.

    Raises:
        ConfigError: no group, or more than one, is called so.
    """
    if not name.strip():
        return next((group for group in groups if ("strategy", "fedavg") in group.settings), groups[0])
    exact = [group for group in groups if name in (group.name, group.label)]
    fitting = exact or [group for group in groups if group.is_called(name)]
    if len(fitting) != 1:
        fit = "no group fits" if not fitting else f"{len(fitting)} groups fit"
        names = "; ".join(group.name for group in fitting or groups)
        raise ConfigError(f"baseline = '{name}' is not allowed: {fit}: {names}")
    return fitting[0]


@dataclass(frozen=True)
class Result:
    """One measure of one group.

    Attributes:
        group: the group.
        measure: the measure.
        interval: mean and interval over the seeds whose runs have a number.
        difference: from the baseline; None for the baseline itself, and where no seed has a number in both.
    """

    group: Group
    measure: Measure
    interval: Interval
    difference: Difference | None


@dataclass(frozen=True)
class Comparison:
    """The groups of one task, compared.

    Attributes:
        groups: in the order in which they are shown.
        baseline: the one from which the differences are.
        after: the round after which all runs are compared; 0: each after its own last round.
        metric: the task's primary metric.
        results: by group and measure, those that have a number.
        notes: what a reader has to know of the runs, a sentence each.
    """

    groups: tuple[Group, ...]
    baseline: Group
    after: int
    metric: Metric
    results: tuple[Result, ...]
    notes: tuple[str, ...]

    @property
    def measures(self) -> list[Measure]:
        """The measures for which any group has a number."""
        return list(dict.fromkeys(result.measure for result in self.results))

    def of_measures(self, keys: Sequence[str]) -> "Comparison":
        """Return the comparison of some measures alone, in their keys' order.

        A key that it has not is passed over.
        """
        chosen = (result for key in keys for result in self.results if result.measure.key == key)
        return replace(self, results=tuple(chosen))

    @property
    def last_round(self) -> int:
        """The round after which all runs are compared, or 0 where their rounds differ."""
        rounds = {run.last_round for group in self.groups for run in group.runs}
        return rounds.pop() if len(rounds) == 1 else 0

    def of(self, group: Group, measure: Measure) -> Result | None:
        """Return a group's result; None if no run of it has a number."""
        return next((r for r in self.results if r.group == group and r.measure == measure), None)


def compare_runs(
    runs: Sequence[RecordedRun], baseline: str = "", each_run: bool = False, measures: Sequence[str] = ()
) -> list[Comparison]:
    """Return a comparison for each task of the runs.

    A run that is not finished would be compared at another round than the others. So all runs of its task are
    compared as they stood after the last round that every unfinished one has. A run that ended early is finished.

    Args:
        runs: at least one.
        baseline: name of the group from which the differences are; empty: FedAvg's of each task, else its first.
        each_run: make each run a group of its own.
        measures: keys of those that are compared, in their order; empty: all.

    Raises:
        ConfigError: no group of a task is called as the baseline, or no task has a measure.
    """
    comparisons = [_compared(groups, choose_baseline(groups, baseline)) for groups in group_runs(runs, each_run)]
    if not measures:
        return comparisons
    keys = {name: name.strip().replace("_", "-") for name in measures}
    all_keys = dict.fromkeys(m.key for comparison in comparisons for m in comparison.measures)
    by_key = {key.replace("_", "-"): key for key in all_keys}
    if unknown := [name for name, key in keys.items() if key not in by_key]:
        raise ConfigError(f"measures = '{unknown[0]}' is not allowed: {', '.join(all_keys)}")
    order = [by_key[key] for key in keys.values()]
    return [comparison.of_measures(order) for comparison in comparisons]


def _compared(groups: Sequence[Group], baseline: Group) -> Comparison:
    metric = baseline.runs[0].metric
    unfinished = [run for group in groups for run in group.runs if not run.finished]
    after = min((run.last_round for run in unfinished), default=0)
    cut = {group: _until(group, after) if after else group for group in groups}
    several_policies = policies_differ(groups)
    results = []
    every_last = {run.last_round for group in cut.values() for run in group.runs}
    for measure in run_measures(metric, max(every_last) > LATE):
        if measure.key == ROUNDS and len(every_last) == 1:
            continue  # the title says it
        if several_policies and measure.key in JOINED:  # who joins more easily is not served better
            measure = replace(measure, better="")
        base = cut[baseline].by_seed(measure)
        for group in cut.values():
            if values := group.by_seed(measure):
                compared = Difference.of(values, base, measure.better, measure.least, measure.is_share)
                difference = None if group == cut[baseline] else compared
                interval = Interval.of(list(values.values()), measure.is_share)
                results.append(Result(group, measure, interval, difference))
    notes = (*_unfinished(unfinished, after), *(note for group in groups for note in _notes(group)))
    return Comparison(tuple(cut.values()), cut[baseline], after, metric, tuple(results), notes)


def _until(group: Group, server_round: int) -> Group:
    return replace(group, runs=tuple(run.until(server_round) for run in group.runs))


def _unfinished(runs: Iterable[RecordedRun], after: int) -> list[str]:
    states = [f"{run.name} (round {run.last_round} of {run.settings['rounds']})" for run in runs]
    return [f"not finished: {', '.join(states)}; all runs are compared after round {after}"] if states else []


def _notes(group: Group) -> list[str]:
    """Return the notes on a group's runs for a reader."""
    notes = []
    count = plural(len(group.runs), "run")
    for reason in dict.fromkeys(run.early_end for run in group.runs if run.early_end):
        ended = [run.last_round for run in group.runs if run.early_end == reason]
        rounds = f"round {min(ended)}" if min(ended) == max(ended) else f"rounds {min(ended)} to {max(ended)}"
        notes.append(f"{group.label}: {len(ended)} of {count} ended early, in {rounds}: {reason}")
    for run in group.runs:
        notes += run.damage
        if run.measured:
            notes.append(f"{group.label}, seed {run.seed}: {run.measured} clients measured the last model")
    if len(group.runs) > len(group.seeds):
        seeds = plural(len(group.seeds), "seed")
        notes.append(f"{group.label}: {count}, {seeds}: runs of one seed count as one, by their mean")
    return notes
