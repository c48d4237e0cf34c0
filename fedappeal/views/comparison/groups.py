"""Groups of runs that differ in the seed alone, named by what tells them apart."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from fedappeal.settings.config import ConfigError, RunConfig
from fedappeal.views.comparison.measures import Measure
from fedappeal.views.comparison.runs import RecordedRun

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
        """Its name among the groups of its task: ``strategy=maxfl maxfl.server-lr=0.5``."""
        return " ".join(f"{key}={value}" for key, value in self.settings)

    @property
    def name(self) -> str:
        """Its name among all groups."""
        return f"task={self.task} {self.label}" if self.names_task else self.label

    @property
    def seeds(self) -> list[int]:
        """The seeds of its runs, each once."""
        return sorted({run.seed for run in self.runs})

    def is_called(self, name: str) -> bool:
        """Whether each word of a name is one of its settings, ``strategy=maxfl``, or the value alone, ``maxfl``."""
        settings = (("task", self.task), *self.settings)
        words = {f"{key}={value}" for key, value in settings} | {value for _, value in settings}
        return all(word in words for word in name.split())

    def by_seed(self, measure: Measure) -> dict[int, float]:
        """Return a measure's finite numbers by seed; runs of one seed by their mean."""
        found: dict[int, list[float]] = {}
        for run in self.runs:
            value = measure.of(run.lines)
            if value is not None and math.isfinite(value):
                found.setdefault(run.seed, []).append(value)
        return {seed: fmean(values) for seed, values in sorted(found.items())}


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
    differing = (key for key, found in values.items() if len(found) > 1)
    return sorted(differing, key=lambda key: ("." in key, order.get(key, len(order)), key))


def choose_baseline(groups: Sequence[Group], name: str) -> Group:
    """Return the group with which others are compared: the first, or the named one.

    Raises:
        ConfigError: no group, or more than one, is called so.
    """
    if not name.strip():
        return groups[0]
    exact = [group for group in groups if name in (group.name, group.label)]
    found = exact or [group for group in groups if group.is_called(name)]
    if len(found) != 1:
        fit = "no group fits" if not found else f"{len(found)} groups fit"
        names = "; ".join(group.name for group in found or groups)
        raise ConfigError(f"baseline = '{name}' is not allowed: {fit}: {names}")
    return found[0]
