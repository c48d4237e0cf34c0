"""A comparison of groups of runs that differ in the seed alone.

Their means, and paired differences from a baseline.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from fedappeal.protocol.metric import Metric
from fedappeal.settings.config import ConfigError, RunConfig
from fedappeal.system.wording import plural
from fedappeal.views.comparison.measures import JOINED, LATE, ROUNDS, Measure, run_measures
from fedappeal.views.comparison.recorded_runs import RecordedRun
from fedappeal.views.comparison.statistics import Difference, Interval, holm

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
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e16:  # above, JSON writes 1e+16 too
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

    def until(self, server_round: int) -> "Group":
        """Return the group with its runs as of a round."""
        return replace(self, runs=tuple(run.until(server_round) for run in self.runs))

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


def choose_baseline(groups: Sequence[Group], name: object) -> Group:
    """Return the baseline group: the named one, else FedAvg's, else the first.

    Raises:
        ConfigError: no group, or more than one, is called so.
    """
    name = "" if name is None else str(name)
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

    def corrected(self, p: float) -> "Result":
        """Return the result with the verdict that a corrected p allows."""
        return replace(self, difference=self.difference.corrected(p)) if self.difference else self


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

    def is_same(self, measure: Measure) -> bool:
        """Whether a measure is the same in every group and seed."""
        of_measure = (result for result in self.results if result.measure == measure)
        differences = [result.difference for result in of_measure if result.group != self.baseline]
        others = sum(group != self.baseline for group in self.groups)
        return len(differences) == others and all(one and one.is_none for one in differences)

    @property
    def tested(self) -> dict[Result, float]:
        """The p values of the differences that are tested: those of measures that are not the same in all runs."""
        differing = {measure for measure in self.measures if not self.is_same(measure)}
        tested = (result for result in self.results if result.measure in differing)
        return {r: r.difference.p for r in tested if r.difference and r.difference.p is not None}

    def corrected(self) -> "Comparison":
        """Return the comparison with verdicts after Holm's correction over all that is tested in it."""
        tested = self.tested
        adjusted = dict(zip(tested, holm([*tested.values()]), strict=True))
        return replace(self, results=tuple(r.corrected(adjusted.get(r, 0.0)) for r in self.results))

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
    runs: Sequence[RecordedRun], baseline: object = "", each_run: bool = False, measures: Sequence[str] = ()
) -> list[Comparison]:
    """Return a comparison for each task of the runs.

    A run that is not finished would be compared at another round than the others. So all runs of its task are
    compared as they stood after the last round that every unfinished one has. A run that ended early is finished.

    Args:
        runs: at least one.
        baseline: name of the group from which the differences are; empty or None: FedAvg's of each task,
            else its first.
        each_run: make each run a group of its own.
        measures: keys of those that are compared, in their order; empty: all.

    Raises:
        ConfigError: no group of a task is called as the baseline, or no task has a measure.
    """
    comparisons = [_comparison(groups, choose_baseline(groups, baseline)) for groups in group_runs(runs, each_run)]
    if not measures:
        return [comparison.corrected() for comparison in comparisons]
    keys = {name: name.strip().replace("_", "-") for name in measures}
    all_keys = dict.fromkeys(m.key for comparison in comparisons for m in comparison.measures)
    by_key = {key.replace("_", "-"): key for key in all_keys}
    if unknown := [name for name, key in keys.items() if key not in by_key]:
        raise ConfigError(f"measures = '{unknown[0]}' is not allowed: {', '.join(all_keys)}")
    order = [by_key[key] for key in keys.values()]
    return [comparison.of_measures(order).corrected() for comparison in comparisons]


def _comparison(groups: Sequence[Group], baseline: Group) -> Comparison:
    metric = baseline.runs[0].metric
    unfinished = [run for group in groups for run in group.runs if not run.finished]
    after = min((run.last_round for run in unfinished), default=0)
    cut = {group: group.until(after) if after else group for group in groups}
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
    states = ", ".join(f"{run.name} (round {run.last_round} of {run.settings['rounds']})" for run in unfinished)
    notes = [f"not finished: {states}; all runs are compared after round {after}"] if states else []
    notes += [note for group in groups for note in _notes(group)]
    return Comparison(tuple(cut.values()), cut[baseline], after, metric, tuple(results), tuple(notes))


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
