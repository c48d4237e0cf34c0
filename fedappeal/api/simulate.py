"""`simulate` and `load`: one run in this process, and one from its folder."""

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any

from fedappeal.api.execution import TemporaryFolder, Watching, check_run
from fedappeal.api.measures import TASKS_OWN, Measures
from fedappeal.api.plan import TaskParts, facts_of, given_again, plan_of, plugin_settings_of
from fedappeal.api.program_task import MEASURES
from fedappeal.api.progress import show_progress
from fedappeal.api.run import Run, run_in_new_folder
from fedappeal.api.silence import Notice, silence
from fedappeal.api.tables import TableColumns
from fedappeal.record.folder import GIVEN, KIND, SIMULATION, check_new
from fedappeal.record.reader import Record
from fedappeal.settings.config import ConfigError, Scalar
from fedappeal.simulation.options import Simulation
from fedappeal.system.files import path_of
from fedappeal.views.tracking.tracker import chosen_trackers
from server.build import Objects


def simulate(
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
    keep_models: int = 0,
    track: Any = (),
    out: str | PathLike[str] = "",
    set: Mapping[str, Scalar] | None = None,
    mode: str = "auto",
    device: str = "cpu",
    threads: int = 0,
    evaluation_precision: str = "float32",
    data_dir: str = "",
    quiet: bool = False,
    **settings: Any,
) -> Run:
    """Simulate a run in this process; return it when it is over.

    Args:
        strategy: a name, a class, or an object: a template, copied for the run. Its settings count.
        task: a name, a class or an object; beside ``data`` what tables call the data.
        model: a ``torch.nn.Module`` (its weights are w_0), its class, a function that makes one, or ``mlp``,
            ``logistic``, ``cnn``; None: the task's.
        data: a list of (train, test) pairs, each side ``(x, y)``, a torch Dataset or a Split; a DataFrame; a
            ``datasets.Dataset``. None: the task's.
        client: of a table, the column that names a row's client.
        label: of a table, the column to predict, or several.
        features: of a table, the input columns; empty: all others.
        partitioner: of flwr-datasets, for a ``datasets.Dataset``; None: by ``client``.
        loss: ``(outputs, y) -> mean loss``; None: the task's, cross-entropy for own data.
        metrics: ``(outputs, y) -> number``, or a dict of such by a name or a `Metric`; the first is primary.
        evaluate: a central test set ``(x, y)``, Dataset or Split, or ``(round, model) -> dict of numbers``.
        on_round: called after each round with a `FinishedRound`; an exception ends the run.
        keep_models: number of the last rounds whose models stay, as ``model-ROUND.safetensors`` in the folder and by
            `Run.model`.
        track: what records the run: ``tensorboard``, ``mlflow``, ``wandb``, ``package.module:Name``, a class or an
            object of `fedappeal.views.tracking.tracker.Tracker`, or several.
        out: the run's folder; empty: a temporary one, which goes with the returned object unless `Run.keep` keeps it.
        set: settings of plug-ins: ``{"maxfl.server_lr": 0.5}``.
        mode: ``batched``, ``sequential`` or ``auto``.
        device: ``cpu``, ``cuda`` or ``auto``.
        threads: PyTorch threads; 0: as PyTorch has it.
        evaluation_precision: of the evaluation of models that clients are sent: ``float32`` or ``bfloat16``.
        data_dir: folder of the task's data set.
        quiet: show no progress, and neither warnings nor progress bars of libraries.
        settings: all other settings of a run, in snake case (``clients=100``, ``rounds=200``).

    Raises:
        ConfigError: one line for what is not allowed, before anything is written.
    """
    with silence(quiet):
        how = Simulation(mode, device, data_dir, threads, evaluation_precision=evaluation_precision)
        trackers, plugin_settings = chosen_trackers(track, plugin_settings_of(set))
        columns, measures = TableColumns(client, label, features, partitioner), Measures.of(loss, metrics)
        parts = TaskParts.of(data, columns, model, measures)
        plan = plan_of(strategy, task, parts, settings, plugin_settings, data_dir)
        watching = Watching(evaluate, on_round, quiet, trackers, keep_models)
        if out not in ("", None):
            check_new(path_of("out", out))
        check_run(plan, how, watching)
        warn_of([*plan.unused, *how.notes()])
        config = plan.config
        temporary = None if out else TemporaryFolder(f"{config.strategy}-{config.task}")
        path = temporary.path if temporary else Path(out).absolute()
        with show_progress(quiet) as show:
            return run_in_new_folder(replace(plan, path=path, name=config.strategy), how, watching, show, temporary)


def load(
    path: str | PathLike[str],
    *,
    strategy: Any = None,
    task: Any = None,
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
    keep_models: int = 0,
    track: Any = (),
    set: Mapping[str, Scalar] | None = None,
    quiet: bool = False,
    allow: Sequence[str] = (),
) -> Run:
    """Return a run from its folder; its history needs nothing else.

    What `simulate` was given of a program's own is given again for `Run.model` and `Run.resume`, by the same names;
    so is ``track``, whose runs continue, with its settings in ``set``. Code that the folder names runs only where
    ``allow`` names its package; ``.`` there: it is looked for in the current folder too.

    Raises:
        ConfigError: no run is there, or what is given is not what the run began with.
    """
    trackers, others = chosen_trackers(track, plugin_settings_of(set))
    if others:
        raise ConfigError(f"set = '{next(iter(others))}' is not allowed: settings of the trackers in track alone")
    folder = path_of("path", path).absolute()
    recorded = Record(folder).config
    if recorded.get("runtime", {}).get(KIND) != SIMULATION:
        return Run(folder, allow=allow)
    how = Simulation.of_runtime(recorded["runtime"])
    columns, measures = TableColumns(client, label, features, partitioner), Measures.of(loss, metrics)
    parts, began = TaskParts.of(data, columns, model, measures), recorded.get(GIVEN, {})
    given = Objects()
    if parts.given or task is not None or strategy is not None:
        _check_given(folder, began.get("task", {}), parts)
        given = given_again(Run(folder).config, strategy, task, parts, how.data_dir)
        _check_same(folder, began, facts_of(given))
    return Run(folder, lambda: given, how, Watching(evaluate, on_round, quiet, trackers, keep_models), allow)


def warn_of(lines: Iterable[str]) -> None:
    """Issue a warning for each line.

    Lines name plug-in settings that no run uses, and how runs are simulated.
    """
    for line in lines:
        warnings.warn(line, Notice, stacklevel=3)


def _check_given(folder: Path, began: Mapping[str, Any], parts: TaskParts) -> None:
    """Check that no part is missing that the run began with.

    Raises:
        ConfigError: names it.
    """
    here = {"data": parts.data is not None, "model": parts.model is not None, MEASURES: parts.measures != TASKS_OWN}
    for part, is_given in here.items():
        if parts.given and part in began and not is_given:
            raise ConfigError(f"{part} is missing: the run in '{folder}' began with its program's own")


def _check_same(folder: Path, began: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Check that a program's objects are those with which the run began.

    Raises:
        ConfigError: names the part, and both fingerprints.
    """
    for part, value in now.get("task", {}).items():
        if (expected := began.get("task", {}).get(part)) != value:
            raise ConfigError(
                f"{part} is not that of the run in '{folder}': {value}, the run began with {expected or 'none'}"
            )
    if "strategy" in now and now["strategy"] != began.get("strategy"):
        raise ConfigError(
            f"strategy is not that of the run in '{folder}': {now['strategy']}, "
            f"the run began with {began.get('strategy', 'a known one')}"
        )
