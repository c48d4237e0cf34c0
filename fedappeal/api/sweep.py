"""`sweep`: a run for each combination of what is given as a list or a range, here or in other processes."""

import itertools
import pickle
import pickletools
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any

from fedappeal.api.execution import TemporaryFolder, Watching, check_run
from fedappeal.api.measures import Measures
from fedappeal.api.plan import NO_FOLDER, TaskParts, chosen_of, plan_of, plugin_settings_of
from fedappeal.api.progress import show_progress
from fedappeal.api.run import Run, run_in_new_folder
from fedappeal.api.runs import Runs
from fedappeal.api.silence import silence
from fedappeal.api.simulate import warn_of
from fedappeal.api.tables import TableColumns
from fedappeal.record.folder import check_new
from fedappeal.record.lines import CONFIG
from fedappeal.runs.launch.in_process import Machine
from fedappeal.runs.plan import RunPlan, check_distinct, combinations, foreign_sections, name_of_run
from fedappeal.settings.config import ConfigError
from fedappeal.simulation.engine import quiet
from fedappeal.simulation.options import Simulation
from fedappeal.system.files import path_of
from server.build import Objects
from strategies.rounds.strategy import Strategy

_SET = "set."
"""In front of the settings of plug-ins among all that may be swept."""
_APART = ("strategy", "task", "model")
"""What is no setting among them."""


def sweep(
    strategy: Any = None,
    task: Any = None,
    *,
    model: Any = None,
    data: Any = None,
    client: str = "",
    label: str | Sequence[str] = "",
    features: Sequence[str] = (),
    partitioner: Any = None,
    loss: Callable[..., Any] | None = None,
    metrics: Any = None,
    evaluate: Any = None,
    on_round: Callable[..., Any] | None = None,
    out: str | PathLike[str] = "",
    set: Mapping[str, Any] | None = None,
    jobs: int = 1,
    mode: str = "auto",
    device: str = "cpu",
    threads: int = 0,
    evaluation_precision: str = "float32",
    data_dir: str = "",
    quiet: bool = False,
    **settings: Any,
) -> Runs:
    """Simulate a run for each combination of listed arguments (list, tuple or range).

    ``strategy``, ``task``, ``model``, a value of ``set`` and any other setting may be swept (``seed=range(5)``); the
    last one changes fastest. Ctrl-C ends the sweep, which returns the runs so far.

    ``jobs`` runs are simulated at once, each in a process of its own; 1: one after another, in this one. ``out`` is
    the folder of all runs; empty: a temporary one, unless its runs are kept. The other arguments are those of
    `fedappeal.simulate`.

    Raises:
        ConfigError: one line for what is not allowed, before any run is started.
        RuntimeError: with several jobs, runs that failed; the others are in their folders.
    """
    with silence(quiet):
        machine = Machine(jobs, threads)
        columns, measures = TableColumns(client, label, features, partitioner), Measures.of(loss, metrics)
        parts, watching = TaskParts.of(data, columns, model, measures), Watching(evaluate, on_round, quiet)
        of_plugins = {f"{_SET}{key}": value for key, value in plugin_settings_of(set).items()}
        call = {"strategy": strategy, "task": task, "model": model, **of_plugins, **settings}
        varied = {
            name: _values(name, value) for name, value in call.items() if isinstance(value, list | tuple | range)
        }
        swept = combinations(varied, "sweep")
        labels = _labels(swept)
        names = [re.sub(r"[^\w.,=-]+", "-", name_of_run(label)).strip("-") or "run" for label in labels]
        check_distinct(zip(names, names, strict=True), "sweep")
        runs = _runs([call | values for values in swept], parts, data_dir)
        if jobs > 1:
            machine = machine.for_jobs(len(runs))
        how = Simulation(mode, device, data_dir, machine.threads, evaluation_precision=evaluation_precision)
        for name in names if out not in ("", None) else ():
            check_new(path_of("out", out) / name)
        unused: Counter[str] = Counter()
        for run in runs:
            plan = run.plan()
            check_run(plan, how, watching)
            if jobs > 1:
                check_sendable(plan, watching)
            unused.update(plan.unused)
        warn_of([*(line for line, count in unused.items() if count == len(runs)), *how.notes()])
        temporary = None if out else TemporaryFolder("sweep")
        root = temporary.path if temporary else Path(out).absolute()
        for number, (run, name, values) in enumerate(zip(runs, names, labels, strict=True), start=1):
            title = " ".join(f"{key} {value}" for key, value in values.items())
            run.path, run.title = root / name, f"run {number} of {len(runs)}: {title}".rstrip()
        begun = in_processes(runs, how, watching, machine) if jobs > 1 else list(_one_by_one(runs, how, watching))
        for over in begun:
            over.temporary = temporary
        return Runs(begun, labels[: len(begun)])


@dataclass
class SweptRun:
    """A run of a sweep, planned only when its turn comes, to save memory.

    Attributes:
        arguments: all that may be swept, by name.
        parts: own model, data, loss and metrics.
        data_dir: folder of the task's data set.
        others: plug-ins that only other runs of the sweep use: it has no settings of theirs.
        path: its folder.
        title: in the progress.
    """

    arguments: Mapping[str, Any]
    parts: TaskParts
    data_dir: str
    others: frozenset[str] = frozenset()
    path: Path = NO_FOLDER
    title: str = ""

    @property
    def settings(self) -> dict[str, Any]:
        """The general settings."""
        return {k: value for k, value in self.arguments.items() if k not in _APART and not k.startswith(_SET)}

    def plan(self) -> RunPlan:
        """Return its plan, checked."""
        run = self.arguments
        plugins = {key.removeprefix(_SET): value for key, value in run.items() if key.startswith(_SET)}
        used = {k: value for k, value in plugins.items() if k.partition(".")[0].replace("_", "-") not in self.others}
        parts = replace(self.parts, model=run["model"])
        plan = plan_of(run["strategy"], run["task"], parts, self.settings, used, self.data_dir)
        return replace(plan, path=self.path, name=self.title)

    def given(self) -> Objects:
        """Return the program's objects that stand in for names."""
        return self.plan().plugins.given


def _runs(each_run: Sequence[Mapping[str, Any]], parts: TaskParts, data_dir: str) -> list[SweptRun]:
    """Return the run of each combination, without settings of own plug-ins that only others use.

    fedappeal's own are known to all.
    """
    runs = [SweptRun(arguments, parts, data_dir) for arguments in each_run]
    foreign = foreign_sections([chosen_of(run.arguments["strategy"], run.settings) for run in runs])
    return [replace(run, others=others) for run, others in zip(runs, foreign, strict=True)]


def _one_by_one(runs: Sequence[SweptRun], how: Simulation, watching: Watching) -> Iterator[Run]:
    with show_progress(watching.quiet) as show:
        for swept in runs:
            run = run_in_new_folder(swept.plan(), how, watching, show)
            yield run
            if run.interrupted:
                return


def _values(name: str, value: Any) -> list[Any]:
    if not (values := list(value)):
        raise ConfigError(f"{name.removeprefix(_SET)} = {value!r} is not allowed: at least one value to sweep")
    return values


def _labels(combinations: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return each run's distinguishing settings: plain values, and names of objects."""
    called: dict[str, dict[int, Any]] = {}
    for combination in combinations:
        for name, value in combination.items():
            numbers = called.setdefault(name, {})
            if id(value) not in numbers:
                numbers[id(value)] = _apart(_name_of(value), list(numbers.values()))
    return [{n.removeprefix(_SET): called[n][id(v)] for n, v in combination.items()} for combination in combinations]


def _name_of(value: Any) -> Any:
    """Return a plain value, or an object's name with its settings."""
    if isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Strategy):
        values = ", ".join(f"{key}={getattr(value.settings, key)}" for key in sorted(value.settings.model_fields_set))
        return f"{value.name}({values})" if values else value.name
    if hasattr(value, "item"):
        return value.item()
    kind = value if hasattr(value, "__name__") else type(value)
    return getattr(kind, "name", "") or kind.__name__


def _apart(name: Any, others: Sequence[Any]) -> Any:
    return name if name not in others else next(n for k in itertools.count(2) if (n := f"{name} {k}") not in others)


_MAIN = "__main__"


@dataclass(frozen=True)
class _Job:
    """A run for another process, planned when it is sent.

    It is then pickled.
    """

    run: SweptRun
    how: Simulation
    evaluate: Any

    def __reduce__(self) -> tuple[Any, ...]:
        return partial, (_run, self.run.plan(), self.how, self.evaluate)

    def __call__(self) -> None:
        _run(self.run.plan(), self.how, self.evaluate)


def _run(plan: RunPlan, how: Simulation, evaluate: Any) -> None:
    """Simulate a run that was sent to this process."""
    quiet()
    run_in_new_folder(plan, how, Watching(evaluate), lambda what, done, total: None)


def check_sendable(plan: RunPlan, watching: Watching) -> None:
    """Check that a run can be sent to another process.

    Raises:
        ConfigError: one line: what cannot.
    """
    if watching.on_round is not None:
        raise ConfigError("on_round is not allowed with jobs > 1: the rounds are in other processes (jobs = 1)")
    try:
        packed = pickle.dumps((plan, watching.evaluate), protocol=5)
    except Exception as error:  # a class's own reduction may raise anything
        reason = " ".join(str(error).split())
        raise ConfigError(f"jobs > 1 is not allowed: an object cannot be sent to another process: {reason}") from None
    if not hasattr(sys.modules[_MAIN], "__file__") and (name := _defined_here(packed)):
        raise ConfigError(
            f"jobs > 1 is not allowed with {name}: other processes do not see what a notebook defines; put it into a "
            "module and import it, or leave jobs = 1"
        )


def in_processes(runs: Sequence[SweptRun], how: Simulation, watching: Watching, machine: Machine) -> list[Run]:
    """Simulate runs in processes; return those that have begun, in order.

    Raises:
        RuntimeError: some failed; the others are in their folders.
    """
    ended: dict[int, str] = {}  # why each run failed that is over; empty: it did not
    interrupted, root = False, runs[0].path.parent
    with show_progress(watching.quiet) as show:
        try:
            jobs = [_Job(run, how, watching.evaluate) for run in runs]
            machine.do(jobs, ended.__setitem__, lambda: show("runs", len(ended), len(runs)))
            show("runs", len(ended), len(runs))
        except KeyboardInterrupt:
            interrupted = True
    if failed := [f"{runs[number].path.name}: {reason}" for number, reason in ended.items() if reason]:
        raise RuntimeError(f"{len(failed)} of {len(runs)} runs failed: {'; '.join(failed)} ({root})")
    begun = [Run(run.path, run.given, how, watching) for run in runs if (run.path / CONFIG).exists()]
    for run in begun:
        run.interrupted = interrupted and not run.finished
    if interrupted:
        print(f"interrupted: {len(begun)} of {len(runs)} runs have begun ({root})")
    return begun


def _defined_here(packed: bytes) -> str:
    """Return a name that the pickle looks up in `__main__`; empty if none."""
    recent: list[str] = []
    for _, argument, _ in pickletools.genops(packed):
        if isinstance(argument, str):
            if _MAIN + ":" in argument:
                return argument.partition(":")[2]
            if recent[-1:] == [_MAIN]:
                return argument
            recent.append(argument)
    return ""
