"""A run before it starts: its settings, its plug-ins and its task, each resolved once and checked in one place."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from fedappeal.record.folder import GIVEN, RunFolder, Usable, new_path, without_memory
from fedappeal.runs.influence import INFLUENCE, bounded_by_default, check_bounded
from fedappeal.settings.config import RunConfig, Scalar
from fedappeal.tasks.task import Task
from server.build import NOTHING_GIVEN, Chosen, Given, check_settings, chosen


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
    """

    plugins: Chosen
    path: Path
    name: str = "run"
    data_dir: str = ""
    resumes: bool = False
    note: str = ""
    unused: tuple[str, ...] = ()
    facts: Mapping[str, Any] | None = None

    @classmethod
    def of(
        cls, config: RunConfig, path: Path, *, given: Given = NOTHING_GIVEN, data_dir: str = "", resumes: bool = False
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

    @cached_property
    def task(self) -> Task:
        """The run's task, loaded when it is first asked for."""
        return self.plugins.load_task(Path(self.data_dir) if self.data_dir else None)

    def folder(self, runtime: Mapping[str, Scalar]) -> RunFolder:
        """Return the run's folder: a new one, with what it records, or that of the run that continues.

        Raises:
            ConfigError: a new run's folder already holds one, or cannot be made.
        """
        if self.resumes:
            return RunFolder.open(self.path)
        folder = RunFolder.create(self.path, self.plugins.all_settings(), runtime)
        if self.facts is not None:
            folder.record(**{GIVEN: self.facts})
        return folder

    @contextmanager
    def mended(self, say: Callable[[str], None], usable: Usable = without_memory) -> Iterator[None]:
        """Hold the folder of a run that continues while its damaged files are put aside.

        Args:
            say: told one line of each.
            usable: as in `server.checkpoints.newest_usable`.

        Raises:
            ConfigError: another process runs the run, or no checkpoint can be used.
        """
        from server.continuation import mended  # Flower, which takes a second

        folder = RunFolder.open(self.path)
        with folder.alone():
            mended(folder, say, usable)
            yield

    def __getstate__(self) -> dict[str, Any]:
        """Leave the loaded task out: another process loads it again."""
        return {key: value for key, value in self.__dict__.items() if key != "task"}


def deployed_plan(settings: Mapping[str, Any], data_dir: str = "", here: bool = False) -> RunPlan:
    """Return the plan of a run of real client processes: bounded where the settings say nothing of it.

    Args:
        settings: by kebab-case key.
        data_dir: folder of the data sets.
        here: whether the processes are this machine's; else paths are the SuperLink's.

    Raises:
        ConfigError: for a setting that is not allowed.
    """
    plugins, note = chosen(RunConfig.parse(settings)), ""
    if INFLUENCE in settings:
        check_bounded(plugins)
    else:
        plugins, note = bounded_by_default(plugins)
    config = plugins.config
    path = Path(config.out or new_path(config))
    if here:
        path = path.absolute()
        if config.initial_model:
            config = config.model_copy(update={"initial_model": str(Path(config.initial_model).absolute())})
    else:
        config = config.model_copy(update={"out": str(path)})
    plugins = replace(plugins, config=config)
    plugins.check()
    return RunPlan(plugins, path, data_dir=data_dir, note=note, unused=tuple(plugins.unused_settings()))


def unused_lines(plans: Sequence[RunPlan]) -> list[str]:
    """Return a line for each plug-in setting that some of these runs do not use."""
    counts = Counter(line for plan in plans for line in plan.unused)
    return [f"in {count} of {len(plans)} runs: {line}" if len(plans) > 1 else line for line, count in counts.items()]
