"""The record of an experiment: all that its page says, as the JSON beside it.

A page is made from its record alone (see `page`), so that it can be written again without the runs.
"""

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedappeal.settings.config import ConfigError
from fedappeal.studies.experiment import Arm, Experiment, Results, RunResult
from fedappeal.studies.plan import Plan, skipped_lines
from fedappeal.studies.table import diverged_runs

_TRIED = re.compile(r" \(tried: .*\)")
"""Errors of a download on this machine, which say nothing to a reader of the page."""

_SEPARATE = ("out", "resume", "schedule-rounds", "seed")
"""Settings that differ from run to run by nature."""


@dataclass(frozen=True)
class Record:
    """An experiment with what came out of it.

    Attributes:
        experiment: as it is written down today.
        numbers: the JSON object.
    """

    experiment: Experiment
    numbers: Mapping[str, Any]

    @property
    def quick(self) -> bool:
        """Whether it is the short form."""
        return bool(self.numbers["quick"])

    @property
    def seeds(self) -> int:
        """Number of seeds that were planned."""
        return int(self.numbers["seeds"])

    def arms(self) -> list[Arm]:
        """Return the rows: arms that were planned, and arms with the paper's numbers that could not be run."""
        names = {arm["name"] for arm in self.numbers["arms"]}
        return [arm for arm in self.experiment.arms if arm.name in names]

    def waiting(self) -> list[str]:
        """Return the arms and columns that were written down after the last full run."""
        known = {arm["name"] for arm in self.numbers["arms"]} | set(self.numbers["skipped"])
        arms = [] if self.quick else [arm.name for arm in self.experiment.arms if arm.name not in known]
        measured = self.numbers["measures"]
        return arms + [f"the column '{m.title}'" for m in self.experiment.measures if m.key not in measured]

    def skipped(self) -> list[str]:
        """Return a line for each reason for which arms could not be run."""
        # An arm that was added since then is not part of a group that could not be run.
        waiting = set(self.waiting())
        arms = tuple(arm for arm in self.experiment.arms if arm.name not in waiting)
        return [_TRIED.sub("", line) for line in skipped_lines(arms, self.numbers["skipped"])]

    def results(self) -> Results:
        """Return the numbers as results, without the runs' histories.

        Measures that were written down after the runs are left out.
        """
        measures = tuple(m for m in self.experiment.measures if m.key in self.numbers["measures"])
        experiment = replace(self.experiment, measures=measures)
        by_name, runs = {arm.name: arm for arm in self.experiment.arms}, []
        for arm in self.numbers["arms"]:
            for place, seed in enumerate(arm["seeds"]):
                values = {key: found[place] for key, found in arm["ours"].items()}
                if arm["name"] in by_name:
                    runs.append(RunResult(by_name[arm["name"]], seed, {}, (), Path(), values))
        return Results(experiment, tuple(runs), self.quick)


def make_record(plan: Plan, results: Results, failed: Mapping[str, str], figure: bool) -> Record:
    """Return the record of what came out.

    Args:
        plan: what was planned.
        results: what came out.
        failed: the runs that failed, with their reasons.
        figure: whether there is a picture.
    """
    measures = plan.experiment.measures
    numbers = {
        "experiment": plan.experiment.name,
        "source": plan.experiment.source,
        "command": command(plan),
        "quick": plan.quick,
        "seeds": plan.seeds,
        "measures": {m.key: m.title for m in measures},
        "arms": [
            {
                "name": arm.name,
                "group": arm.group,
                "paper": dict(arm.paper),
                "seeds": [run.seed for run in results.of(arm.name)],
                "ours": {m.key: [run.number(m) for run in results.of(arm.name)] for m in measures},
            }
            for arm in planned_arms(plan)
        ],
        "figure": figure,
        "diverged": [list(row) for row in diverged_runs(results)],
        "skipped": dict(plan.skipped),
        "failed": dict(failed),
        "settings": _settings(plan),
        "versions": _versions(plan),
    }
    return Record(plan.experiment, json.loads(json.dumps(numbers, allow_nan=False)))


_KEYS = (
    "command",
    "quick",
    "seeds",
    "measures",
    "arms",
    "figure",
    "diverged",
    "skipped",
    "failed",
    "settings",
    "versions",
)


def read_record(experiment: Experiment, folder: Path) -> Record:
    """Return the record beside an experiment's page.

    Raises:
        ConfigError: it is not there, or no record of this experiment.
    """
    path = folder / f"{experiment.name}.json"
    try:
        numbers = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"{path} cannot be read: {reason}") from None
    if not isinstance(numbers, dict) or numbers.get("experiment") != experiment.name:
        raise ConfigError(f"{path} holds no numbers of {experiment.name}")
    if missing := [key for key in _KEYS if key not in numbers]:
        raise ConfigError(f"{path} has no {missing[0]}: it was written by an older version")
    return Record(experiment, numbers)


def planned_arms(plan: Plan) -> list[Arm]:
    """Return the rows: the plan's arms, and arms with the paper's numbers that could not be run here."""
    planned = {run.arm.name for run in plan.runs}
    return [arm for arm in plan.experiment.arms if arm.name in planned or (arm.name in plan.skipped and arm.paper)]


def command(plan: Plan) -> str:
    """Return the command that makes the page."""
    name, grid = plan.searched
    words = ["fedappeal", "reproduce", name or plan.experiment.name, *(["--quick"] if plan.quick else [])]
    words += ["--grid", grid] if grid else []
    words += ["--seeds", str(plan.seeds)]
    for key, value in plan.changed.items():
        words += ["--set", f"{key}={value}"]
    return shlex.join(words)


def _settings(plan: Plan) -> dict[str, Any]:
    by_arm = {
        run.arm.name: {key: text_of(value) for key, value in run.settings.items() if key not in _SEPARATE}
        for run in plan.runs
    }
    return rows_settings(by_arm, sorted({run.seed for run in plan.runs}))


def rows_settings(rows: Mapping[str, Mapping[str, str]], seeds: Sequence[int]) -> dict[str, Any]:
    """Return the seeds, the settings that differ between rows, and the others.

    A row has the general settings and those of its own plug-ins, which are compared with the rows that have them.

    Args:
        rows: each row's settings, as texts.
        seeds: of all rows.
    """
    found: dict[str, list[str]] = {}
    for settings in rows.values():
        for key, value in settings.items():
            found.setdefault(key, []).append(value)
    different = [
        key
        for key in sorted(found)
        if any(value != found[key][0] for value in found[key]) or ("." not in key and len(found[key]) < len(rows))
    ]
    return {
        "seeds": list(seeds),
        "different": different,
        "rows": {name: [row.get(key, "") for key in different] for name, row in rows.items()},
        "shared": {key: found[key][0] for key in sorted(found) if key not in different},
    }


def text_of(value: object) -> str:
    """Return a setting's value as it stands on the page."""
    return "" if value is None else "(empty)" if value == "" else str(value)


def _versions(plan: Plan) -> dict[str, list[str]]:
    found: dict[str, set[str]] = {}
    for run in plan.runs:
        for package, version in run.recorded().get("versions", {}).items():
            if package == "platform":
                continue  # the machine's; the run's folder has it
            found.setdefault(package, set()).add(str(version))
    return {package: sorted(versions) for package, versions in found.items()}
