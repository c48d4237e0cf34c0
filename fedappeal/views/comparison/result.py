"""What a comparison finds: means of groups, and paired differences from the baseline."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from fedappeal.protocol.metric import Metric
from fedappeal.system.plural import counted
from fedappeal.views.comparison.groups import Group, choose_baseline, group_runs
from fedappeal.views.comparison.measures import LATE, Measure, run_measures
from fedappeal.views.comparison.runs import RecordedRun
from fedappeal.views.comparison.statistics import Difference, Interval


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

    def of(self, group: Group, measure: Measure) -> Result | None:
        """Return a group's result; None where no run of it has a number."""
        return next((r for r in self.results if r.group == group and r.measure == measure), None)


def compare_runs(runs: Sequence[RecordedRun], baseline: str = "", each_run: bool = False) -> list[Comparison]:
    """Return a comparison for each task of the runs.

    A run that is not finished would be compared at another round than the others. So all runs of its task are
    compared as they stood after the last round that every unfinished one has. A run that ended early is finished.

    Args:
        runs: at least one.
        baseline: name of the group from which the differences are; empty: the first of each task.
        each_run: make each run a group of its own.

    Raises:
        ConfigError: no group of a task is called as the baseline.
    """
    return [_compared(groups, choose_baseline(groups, baseline)) for groups in group_runs(runs, each_run)]


def _compared(groups: Sequence[Group], baseline: Group) -> Comparison:
    metric = baseline.runs[0].metric
    unfinished = [run for group in groups for run in group.runs if not run.finished]
    after = min((run.last_round for run in unfinished), default=0)
    cut = {group: _until(group, after) if after else group for group in groups}
    results = []
    averaged = any(run.last_round > LATE for group in cut.values() for run in group.runs)
    for measure in run_measures(metric, averaged):
        base = cut[baseline].by_seed(measure)
        for group in cut.values():
            if values := group.by_seed(measure):
                difference = Difference.of(values, base, measure.better) if group != cut[baseline] else None
                results.append(Result(group, measure, Interval.of(list(values.values())), difference))
    notes = (*_unfinished(unfinished, after), *(note for group in groups for note in _notes(group)))
    return Comparison(tuple(cut.values()), cut[baseline], after, metric, tuple(results), notes)


def _until(group: Group, server_round: int) -> Group:
    return replace(group, runs=tuple(run.until(server_round) for run in group.runs))


def _unfinished(runs: Iterable[RecordedRun], after: int) -> list[str]:
    states = [f"{run.name} (round {run.last_round} of {run.settings['rounds']})" for run in runs]
    return [f"not finished: {', '.join(states)}; all runs are compared after round {after}"] if states else []


def _notes(group: Group) -> list[str]:
    """Return what a reader has to know of a group's runs."""
    notes = []
    count = counted(len(group.runs), "run")
    for reason in dict.fromkeys(run.early_end for run in group.runs if run.early_end):
        ended = [run.last_round for run in group.runs if run.early_end == reason]
        rounds = f"round {min(ended)}" if min(ended) == max(ended) else f"rounds {min(ended)} to {max(ended)}"
        notes.append(f"{group.name}: {len(ended)} of {count} ended early, in {rounds}: {reason}")
    for run in group.runs:
        notes += run.damage
        if run.measured:
            notes.append(f"{group.name}, seed {run.seed}: {run.measured} clients measured the last model")
    if len(group.runs) > len(group.seeds):
        seeds = counted(len(group.seeds), "seed")
        notes.append(f"{group.name}: {count}, {seeds}: runs of one seed count as one, by their mean")
    return notes
