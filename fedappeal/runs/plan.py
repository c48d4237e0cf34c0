"""Runs before they start, alone or swept: settings, plug-ins and task, each resolved once, checked in one place."""

import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedappeal.core.plugins import Plugin, is_ours
from fedappeal.record.folder import GIVEN, RunFolder, Usable, check_new, holds_run, new_path, without_memory
from fedappeal.record.reader import Record
from fedappeal.settings.config import ConfigError, RunConfig, Scalar, scalar
from fedappeal.settings.model import did_you_mean
from fedappeal.tasks.task import Task
from server.build import NO_OBJECTS, Objects, Plugins, check_real, check_settings, run_plugins
from strategies.rounds.algorithm import check_influence
from strategies.rounds.sums.influence import FAR, FEWEST

if TYPE_CHECKING:
    from fedappeal.simulation.options import Simulation


@dataclass(frozen=True)
class RunPlan:
    """One run, before it starts or continues.

    Attributes:
        plugins: its settings and plug-ins.
        path: its folder.
        name: what tells it from the others of a sweep.
        data_dir: folder of the data sets, where this machine trains; empty: the default.
        resumes: whether it continues the run of its folder.
        note: a line below the run's heading.
        unused: a line for each given plug-in setting that the run does not use.
        facts: what the folder records of a program's objects; None: the run is a command's.
        written: its folder as the user wrote it; None: as ``path``.
    """

    plugins: Plugins
    path: Path
    name: str = "run"
    data_dir: str = ""
    resumes: bool = False
    note: str = ""
    unused: tuple[str, ...] = ()
    facts: Mapping[str, Any] | None = None
    written: Path | None = None

    @classmethod
    def of(
        cls, config: RunConfig, path: Path, *, given: Objects = NO_OBJECTS, data_dir: str = "", resumes: bool = False
    ) -> "RunPlan":
        """Return the plan of a run whose settings go together.

        Args:
            config: the settings.
            path: its folder.
            given: objects in place of names.
            data_dir: folder of the data sets.
            resumes: whether the folder's run continues.

        Raises:
            ConfigError: for a setting that is not allowed.
        """
        plugins = check_settings(config, given)
        unused = tuple(plugins.unused_settings())
        return cls(plugins, path, data_dir=data_dir, resumes=resumes, unused=unused)

    @property
    def config(self) -> RunConfig:
        """The run's settings."""
        return self.plugins.config

    @property
    def given_path(self) -> Path:
        """Its folder as the user wrote it: what is shown to be copied."""
        return self.written or self.path

    @property
    def begun(self) -> bool:
        """Whether its folder holds a run, which can be continued."""
        return holds_run(self.path)

    @cached_property
    def task(self) -> Task:
        """The run's task, loaded when it is first asked for."""
        return self.plugins.load_task(self.data_dir)

    def folder(self, runtime: Mapping[str, Scalar]) -> RunFolder:
        """Return the run's folder: new with its record, or the continued run's.

        Raises:
            ConfigError: a new run's folder already holds one, or cannot be made.
        """
        if self.resumes:
            return RunFolder.open(self.path)
        folder = RunFolder.create(self.path, self.plugins.all_settings(), runtime)
        if self.facts is not None:
            folder.record(**{GIVEN: self.facts})
        return folder

    def mend(self, say: Callable[[str], None], usable: Usable = without_memory, **facts: object) -> None:
        """Put the damaged files of a run that continues aside, and record facts of it.

        Args:
            say: told one line of each file.
            usable: as in `server.checkpoints.newest_usable`.
            facts: as `RunFolder.record` takes them.

        Raises:
            ConfigError: another process runs the run, or no checkpoint can be used.
        """
        from server.checkpoints import mend_files  # Flower, which takes a second

        folder = RunFolder.open(self.path)
        with folder.alone():
            mend_files(folder, say, usable)
            if facts:
                folder.record(**facts)

    def __getstate__(self) -> dict[str, Any]:
        """Leave the loaded task out: another process loads it again."""
        return {key: value for key, value in self.__dict__.items() if key != "task"}


def deployed_plan(settings: Mapping[str, Any], data_dir: str = "", here: bool = False) -> RunPlan:
    """Return the plan of a run of real clients, with bounded influence by default.

    Args:
        settings: by kebab-case key.
        data_dir: folder of the data sets.
        here: whether the processes are this machine's; else paths are the SuperLink's.

    Raises:
        ConfigError: for a setting that is not allowed.
    """
    plugins, note = run_plugins(RunConfig.parse(settings)), ""
    check_real(plugins.config)
    config = plugins.config
    if INFLUENCE in settings:
        check_bounded(plugins)
    elif reason := plugins.unbounded:
        note = f"influence: off: one client can replace the model ({reason})"
    else:
        config = config.model_copy(update={INFLUENCE: BOUNDED})
    path = written = Path(config.out or new_path(config))
    if here:
        path = path.absolute()
        if config.initial_model:
            config = config.model_copy(update={"initial_model": str(Path(config.initial_model).absolute())})
    else:
        config = config.model_copy(update={"out": str(path)})
    return replace(RunPlan.of(config, path, data_dir=data_dir), note=note, written=written)


def unused_lines(plans: Sequence[RunPlan]) -> list[str]:
    """Return a line for each plug-in setting that some of these runs do not use."""
    counts = Counter(line for plan in plans for line in plan.unused)
    return [f"in {count} of {len(plans)} runs: {line}" if len(plans) > 1 else line for line, count in counts.items()]


INFLUENCE, BOUNDED = "influence", "bounded"


def check_bounded(run: Plugins) -> None:
    """Check that a run of real processes can be bounded as its settings say.

    Raises:
        ConfigError: it cannot.
    """
    if run.config.influence != BOUNDED:
        return
    check_influence(run.strategy, run.config.influence, run.config.aggregation)
    if run.unbounded:
        raise ConfigError(run.unbounded)


def influence_line(run: Plugins) -> str:
    """Return a heading's line on the bounds of influence; empty without bounds."""
    config = run.config
    if config.influence != BOUNDED:
        return ""
    if config.clients < FEWEST:
        return f"influence: bounded has no effect on fewer than {FEWEST} clients: one can replace the model"
    unbounded = f" Not bounded: {run.strategy.still_open}." if run.strategy.still_open else ""
    return (
        "influence: bounded. An update longer than the median is shortened to it; a weight above "
        f"{config.influence_weight:g} medians counts as one. "
        f"An update above {FAR * config.influence_norm:g} medians, "
        f"or against the common direction, is left out.{unbounded}"
    )


MOST_RUNS = 10_000
"""Runs of one sweep; more are a slip of the pen."""
_WHOLE = re.compile("[0-9]{1,18}")
_NOT_SWEPT = frozenset({"out", "resume", "schedule-rounds", "start-timeout", "start-after", "round-timeout"})
"""Settings that change nothing of a simulated run: where it is, and how long is waited."""


def combinations(varied: Mapping[str, Sequence[Any]], sweep: str) -> list[dict[str, Any]]:
    """Return every combination of values, by name; the last name changes fastest.

    Args:
        varied: the values, by name.
        sweep: what the message calls the sweep.

    Raises:
        ConfigError: more than `MOST_RUNS`.
    """
    if (runs := prod(map(len, varied.values()))) > MOST_RUNS:
        raise ConfigError(f"{sweep} is not allowed: {runs} runs, at most {MOST_RUNS}")
    return [dict(zip(varied, values, strict=True)) for values in itertools.product(*varied.values())]


def name_of_run(varied: Mapping[str, Any]) -> str:
    """Return a run's name among those of its sweep: ``seed-1-strategy-maxfl``."""
    return "-".join(f"{key}-{value}" for key, value in varied.items())


def check_distinct(runs: Iterable[tuple[str, object]], sweep: str) -> None:
    """Check that no two runs of a sweep are the same.

    Args:
        runs: each run's name, and all that makes it.
        sweep: what the message calls the sweep.

    Raises:
        ConfigError: names the two.
    """
    names: dict[object, str] = {}
    for name, identity in runs:
        if identity in names:
            raise ConfigError(f"{sweep} is not allowed: {names[identity]} and {name} are the same run")
        names[identity] = name


def swept_plans(
    settings: Mapping[str, Any], sweep: Sequence[str] = (), out: str = "", data_dir: str = ""
) -> list[RunPlan]:
    """Return a plan for each combination of swept values; for a lone run without any.

    Args:
        settings: settings that all runs share; those of plug-ins under ``NAME.KEY``.
        sweep: ``KEY=VALUE,VALUE,...`` or ``NAME.KEY=VALUE,...``; a range of whole numbers is written ``0..4``. A run
            whose plug-ins do not know a key leaves it alone.
        out: folder of the run, or of all runs, of which those that are over are left out; empty: a new one under
            ``runs``.
        data_dir: folder of the data sets.

    Raises:
        ConfigError: for a setting that is not allowed.
    """
    written = f"sweep = '{' '.join(sweep)}'"
    varied: dict[str, list[Any]] = {}
    for text in sweep:
        key, values = _swept(text)
        if key in varied:
            raise ConfigError(f"sweep = '{text}' is not allowed: {key} is swept twice; give all its values at once")
        varied[key] = values
    each_varied = combinations(varied, written)
    configs = [RunConfig.parse({**settings, **values}) for values in each_varied]
    if not out:
        shared = {key: value for key, value in settings.items() if key not in varied}
        out = str(new_path(RunConfig.parse(shared) if varied else configs[0]))
    names = [name_of_run(values).replace(":", ".").replace("/", "_") for values in each_varied]
    check_distinct(zip(names, (tuple(sorted(c.as_config().items())) for c in configs), strict=True), written)
    given_root = Path(out)
    root = given_root.absolute()
    plans = [
        RunPlan(plugins, root / name, name or "run", data_dir, unused=tuple(unused), written=given_root / name)
        for (plugins, unused), name in zip(_without_others([run_plugins(c) for c in configs]), names, strict=True)
    ]
    for plan in plans:
        plan.plugins.check()
        if not (varied and plan.begun):
            check_new(plan.path)
    return _unfinished(plans) if varied else plans


def _unfinished(plans: Sequence[RunPlan]) -> list[RunPlan]:
    """Return the runs of a sweep that are not over; those that have begun continue.

    Raises:
        ConfigError: a folder holds a run of other settings, or all runs are over.
    """
    left = []
    for plan in plans:
        planned, record = plan.plugins.all_settings(), Record(plan.path)
        recorded = record.settings if plan.begun else planned
        for key in sorted((planned.keys() | recorded.keys()) - _NOT_SWEPT):
            if recorded.get(key) != planned.get(key):
                raise ConfigError(
                    f"out = '{plan.given_path.parent}' is not allowed: its '{plan.name}' is a run with "
                    f"{key} = {recorded.get(key)!r}, not {planned.get(key)!r}"
                )
        if not (plan.begun and record.standing.end):
            left.append(replace(plan, resumes=plan.begun))
    if not left:
        raise ConfigError(f"out = '{plans[0].given_path.parent}' is not allowed: all runs of this sweep are over")
    return left


def _swept(text: str) -> tuple[str, list[Any]]:
    """Return the key and the values of ``KEY=VALUE,VALUE,...``."""
    key, equals, values = text.partition("=")
    key = key.strip().replace("_", "-")
    general = sorted(set(RunConfig.keys()) - _NOT_SWEPT)
    of_plugin = all(key.partition("."))
    if not equals or not values or not (of_plugin or key in general):
        hint = "" if of_plugin or key in general else did_you_mean(key, general)
        raise ConfigError(
            f"sweep = '{text}' is not allowed: KEY=VALUE,VALUE,... with a key of the run's settings, "
            f"or NAME.KEY of a plug-in{hint}"
        )
    swept: list[Any] = []
    for value in values.split(","):
        first, dots, last = value.partition("..")
        whole = dots and all(_WHOLE.fullmatch(end) for end in (first, last))
        if whole and int(first) > int(last):
            raise ConfigError(f"sweep = '{text}' is not allowed: the range {value} is empty; {last}..{first}?")
        if whole and int(last) - int(first) >= MOST_RUNS:
            raise ConfigError(f"sweep = '{text}' is not allowed: at most {MOST_RUNS} runs")
        swept += range(int(first), int(last) + 1) if whole else [scalar(value) if of_plugin else value]
    return key, swept


def foreign_sections(runs: Sequence[Plugins]) -> list[frozenset[str]]:
    """Return for each run the plug-ins that only other runs of its sweep use."""
    names = [frozenset(p.settings_name() for p in run.plugins if not is_ours(p)) for run in runs]
    return [frozenset[str]().union(*names) - of_run for of_run in names]


def _without_others(runs: Sequence[Plugins]) -> list[tuple[Plugins, list[str]]]:
    """Return each run without settings of others' plug-ins, and what it leaves unused.

    Raises:
        ConfigError: for a setting of no known plug-in, or one that its plug-in does not have.
    """
    beside: dict[str, type[Plugin]] = {p.settings_name(): p for run in runs for p in run.plugins}
    trimmed = []
    for run, foreign in zip(runs, foreign_sections(runs), strict=True):
        plugins = tuple((key, value) for key, value in run.config.plugins if key.partition(".")[0] not in foreign)
        config = run.config.model_copy(update={"plugins": plugins})
        trimmed.append((replace(run, config=config), run.unused_settings(beside)))
    return trimmed


def simulate_plan(plan: RunPlan, simulation: "Simulation", folder: RunFolder | None = None, **more: Any) -> None:
    """Simulate a planned run in this process.

    Args:
        plan: the run.
        simulation: how it is simulated.
        folder: the run's; None: it is made, or opened.
        more: further arguments of `fedappeal.simulation.engine.simulate`.
    """
    from fedappeal.simulation import engine

    given, folder = plan.plugins.given, folder or plan.folder(simulation.runtime())
    engine.simulate(plan.config, folder, simulation, task=given.task, strategy=given.strategy, **more)
