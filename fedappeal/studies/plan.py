"""The runs that an experiment needs, where each is kept, and which are there already."""

import json
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

from fedappeal.record.lines import CONFIG, HISTORY
from fedappeal.record.reader import Record
from fedappeal.settings.config import ConfigError, RunConfig, TaskSettings
from fedappeal.studies.experiment import Arm, Experiment, RunResult
from fedappeal.studies.results import StudyResults
from fedappeal.tasks import TASKS, load_task
from server.build import check_settings, run_plugins

RESULT = "result.json"
"""What a computed experiment leaves in a run's folder, in place of the files of a federated run."""

_KEPT_OUT = ("out", "resume")
"""Settings that say where a run is, not what it is."""


@dataclass(frozen=True)
class PlannedRun:
    """A run that an experiment needs.

    Attributes:
        arm: its row.
        seed: its seed.
        settings: all its settings, as they are recorded: the general ones, and those of its plug-ins.
        path: its folder.
        config: the same as a run configuration; None for a computed experiment.
    """

    arm: Arm
    seed: int
    settings: Mapping[str, Any]
    path: Path
    config: RunConfig | None = None

    @property
    def name(self) -> str:
        """The run's name on the screen."""
        return f"{self.arm.name}, seed {self.seed}"

    @property
    def rounds(self) -> int:
        """The run's number of rounds, for a progress bar."""
        return self.config.rounds if self.config else 1

    def finished(self) -> bool:
        """Whether the run is finished."""
        if self.config is None:
            return (self.path / RESULT).exists()
        return Record(self.path).standing.end is not None

    def rounds_done(self) -> int:
        """The number of finished rounds."""
        file = self.path / (HISTORY if self.config else RESULT)
        if not file.exists():
            return 0
        return file.read_bytes().count(b"\n") if self.config else 1

    def result(self) -> RunResult:
        """Return the result of a finished run."""
        computed = [] if self.config else [json.loads((self.path / RESULT).read_text("utf-8"))["result"]]
        lines = computed or Record(self.path).history
        return RunResult(self.arm, self.seed, lines, self.path)

    def recorded(self) -> dict[str, Any]:
        """Return the settings and versions in the run's folder; empty without a folder."""
        if self.config is None:
            return dict(json.loads((self.path / RESULT).read_text("utf-8"))) if (self.path / RESULT).exists() else {}
        return Record(self.path).config if (self.path / CONFIG).exists() else {}

    def differing(self) -> list[str]:
        """Return the settings recorded otherwise than planned, as ``key = recorded, planned``."""
        if not (record := self.recorded()):
            return []
        recorded = dict(record["settings"])
        if self.config:
            recorded = run_plugins(RunConfig.parse_recorded(recorded, ignore_unknown=True)).all_settings()
        keys = sorted((set(recorded) | set(self.settings)) - set(_KEPT_OUT))
        return [
            f"{key} = {recorded.get(key)!r}, now {self.settings.get(key)!r}"
            for key in keys
            if recorded.get(key) != self.settings.get(key)
        ]

    def forget(self) -> None:
        """Remove an interrupted or outdated run's folder.

        An experiment does not keep its clients' memory.
        """
        if any((self.path / name).exists() for name in (CONFIG, RESULT)):
            shutil.rmtree(self.path)


@dataclass(frozen=True)
class Plan:
    """All runs of an experiment.

    Attributes:
        experiment: the experiment.
        runs: its runs: arm after arm, then by seed.
        skipped: arms that cannot be run here, with the reason.
        seeds: number of seeds.
        quick: whether it is the short form.
        changed: settings given on the command line.
        searched: the experiment whose grid this is, or comes from, and the settings that were searched over.
    """

    experiment: Experiment
    runs: tuple[PlannedRun, ...]
    skipped: Mapping[str, str]
    seeds: int
    quick: bool
    changed: Mapping[str, Any]
    searched: tuple[str, str] = ("", "")


def skipped_lines(arms: Sequence[Arm], skipped: Mapping[str, str]) -> list[str]:
    """Return a line for each reason why arms are skipped.

    Args:
        arms: all of the experiment.
        skipped: the reason by arm.
    """
    whole = {arm.group for arm in arms} - {""}
    whole -= {arm.group for arm in arms if arm.name not in skipped}
    names_by_reason: dict[str, dict[str, None]] = {}
    for arm in (arm for arm in arms if arm.name in skipped):
        name = f"all of '{arm.group}'" if arm.group in whole else arm.titled
        names_by_reason.setdefault(skipped[arm.name], {})[name] = None
    return [f"{'; '.join(names)}: {reason}" for reason, names in names_by_reason.items()]


def slug(name: str) -> str:
    """Return a name as part of a path: lower case, words joined by hyphens."""
    return re.sub(r"[^a-z0-9.]+", "-", name.lower()).strip("-.")


def folder_name(name: str, quick: bool) -> str:
    """Return the name under which an experiment's runs and its page are kept."""
    return f"{name}-quick" if quick else name


def make_plan(
    experiment: Experiment,
    out: Path,
    seeds: int = 0,
    quick: bool = False,
    changed: Mapping[str, Any] | None = None,
    data_dir: str = "",
    present: StudyResults | None = None,
) -> Plan:
    """Return the plan of an experiment's runs; starts nothing.

    Args:
        experiment: the experiment.
        out: folder of all experiments' runs.
        seeds: number of seeds; 0: the experiment's, of the short form one.
        quick: the short form.
        changed: settings that go before all others.
        data_dir: folder of the data sets.
        present: numbers of earlier runs, whose seeds are not run again.

    Raises:
        ConfigError: a setting that is not allowed, or no arm can be run here.
    """
    changed = dict(changed or {})
    if "seed" in changed:
        raise ConfigError(
            f"set = 'seed={changed['seed']}' is not allowed: the seeds are 0, 1, ...; --seeds says how many"
        )
    unavailable = cache(partial(_unavailable, data_dir=data_dir))  # looking for data that is not there takes long
    seeds = seeds or (1 if quick else experiment.seeds)
    runs: list[PlannedRun] = []
    skipped: dict[str, str] = {}
    paths: dict[Path, str] = {}
    for arm in experiment.arms:
        if quick and experiment.quick.arms and arm.name not in experiment.quick.arms:
            continue
        settings = {**experiment.settings, **arm.settings, **(experiment.quick.settings if quick else {}), **changed}
        shared = arm.runs_in if arm.runs_in and not (quick or changed) else ""
        folder = out / folder_name(shared or experiment.name, quick) / slug(arm.name)
        if folder in paths:
            raise ValueError(f"{experiment.name}: {arm.name} and {paths[folder]} would share a folder")
        paths[folder] = arm.name
        config = None if experiment.compute else RunConfig.parse(settings)
        if config and (reason := _not_importable(config.task)):
            skipped[arm.name] = reason
            continue
        # What is not allowed is said before data are looked for, or downloaded.
        planned = [
            _run(experiment, arm, settings, seed, folder / f"seed-{seed}")
            for seed in (range(seeds) if present is None else present.lacking(arm.name, seeds))
        ]
        if config and (reason := unavailable(_task(config))):
            skipped[arm.name] = reason
            continue
        runs += planned
    if not runs:
        reasons = "; ".join(sorted(set(skipped.values())))
        raise ConfigError(f"{experiment.name} cannot be run here: {reasons}")
    return Plan(experiment, tuple(runs), skipped, seeds, quick, changed)


def _run(experiment: Experiment, arm: Arm, settings: Mapping[str, Any], seed: int, path: Path) -> PlannedRun:
    if experiment.compute:
        if unknown := set(settings) - set(experiment.settings) - set(arm.settings):
            raise ConfigError(f"unknown setting '{min(unknown)}': {experiment.name} has {', '.join(settings)}")
        return PlannedRun(arm, seed, json.loads(json.dumps(dict(settings))), path)
    config = RunConfig.parse_recorded({**settings, "seed": seed})  # in the papers clients judge by training data
    return PlannedRun(arm, seed, check_settings(config).all_settings(), path, config)


def _task(config: RunConfig) -> TaskSettings:
    """Return the task's settings that decide whether its data can be had.

    Without settings of strategies, policies, ...
    """
    task = config.task_settings()
    name = getattr(TASKS.find(task.task), "name", "")
    section = tuple(pair for pair in task.plugins if pair[0].partition(".")[0] == name)
    return task.model_copy(update={"plugins": section})


def _not_importable(task: str) -> str:
    """Return why a task's code cannot be imported; empty if it can."""
    try:
        TASKS.find(task)
    except ConfigError as error:
        return str(error)
    return ""


def _unavailable(task: TaskSettings, data_dir: str) -> str:
    """Return why a task's data cannot be had here; empty if it can."""
    try:
        load_task(task, data_dir).check()
    except ConfigError as error:
        return str(error)
    return ""
