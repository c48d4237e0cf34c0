"""A simulated run as an object: its settings, its history, its model; it can continue."""

import html
import shutil
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flwr.app import ArrayRecord

from client.training.devices import pick_device
from client.training.models import arrays_of, load_arrays
from fedappeal.api.execution import TemporaryFolder, Watching, keep_model, kept_model, new_folder
from fedappeal.api.progress import Shown, show_progress
from fedappeal.api.report import Report
from fedappeal.api.silence import Notice, silence
from fedappeal.api.trained import check_export, export, predict_table
from fedappeal.core.plugins import ALL, Allowed
from fedappeal.data.columns import Columns, names_of
from fedappeal.data.scaling import POOLED
from fedappeal.protocol.foreign_text import printable
from fedappeal.protocol.metric import Metric
from fedappeal.protocol.packing import Arrays, Layout
from fedappeal.record.columns import CARD, SUMMARY, shown_in, templates, units
from fedappeal.record.folder import GIVEN, names_in_data
from fedappeal.record.lines import CHECKPOINT, MODEL
from fedappeal.record.reader import Record, Snapshot
from fedappeal.runs.checks import check_allowed, check_device
from fedappeal.runs.plan import RunPlan, simulate_plan
from fedappeal.settings.config import ConfigError, RunConfig
from fedappeal.simulation.options import Simulation
from fedappeal.simulation.process_wide import check_threads
from fedappeal.system.files import path_of, read_safetensors
from fedappeal.system.wording import natural_order, short_path
from fedappeal.tasks import load_task
from fedappeal.tasks.share import parts_of, share_of
from fedappeal.tasks.task import Task
from fedappeal.trained.card import model_file, read_card
from fedappeal.trained.model import Prediction, TrainedModel
from fedappeal.views.comparison.export import pandas
from fedappeal.views.terminal.progress import progress_text
from fedappeal.views.tracking.tracker_threads import track_run
from server.build import Objects, run_plugins
from server.checkpoints import Checkpoint, settings_to_resume
from strategies.rounds.round import RoundRecord

if TYPE_CHECKING:
    import pandas as pd
    from torch import nn


FIGURES = {column.key for column in templates(CARD)}
"""Columns that a line about a run holds, besides the primary metric."""
SCALED_OUTSIDE = "the model takes columns as (column - mean) / standard deviation, of each client's own training data"
_NOT_NUMBERS = ("failures", "decisions")
"""Columns of a history that a data frame leaves out."""


@dataclass(frozen=True)
class FinishedRound:
    """One finished round, the argument of `on_round`.

    Attributes:
        number: counted from 1.
        row: its row of the history, by column.
        decisions: what became of each client that was asked.
        run: the run so far; its `Run.model` may be that of an earlier round.
    """

    number: int
    row: Mapping[str, Any]
    decisions: Mapping[str, str]
    run: "Run"
    _arrays: ArrayRecord = field(repr=False)

    @cached_property
    def model(self) -> "nn.Module":
        """The round's model in evaluation mode, on the CPU."""
        return self.run._model_of(self._arrays)


class Run:
    """A simulated run: under way, finished, or loaded from its folder.

    Attributes:
        path: its folder.
        interrupted: whether Ctrl-C ended it; `resume` continues it.
        temporary: deletes the folder with the last object that holds it; None: the folder stays.
    """

    def __init__(
        self,
        path: Path,
        given: Callable[[], Objects] = Objects,
        how: Simulation | None = None,
        watching: Watching | None = None,
        allow: Iterable[str] | None = None,
    ) -> None:
        """Open a run's folder; programs call `fedappeal.simulate` or `fedappeal.load`.

        Args:
            path: the folder.
            given: returns the objects that stand in for names; by default there are none, or they are not known.
            how: how it is simulated; None: as its folder records.
            watching: what the program wants to see of it.
            allow: packages whose code may run because the folder names it; None: the program named all itself.
        """
        self.path = path
        self.interrupted = False
        self.temporary: TemporaryFolder | None = None
        self._given = given
        self._how = how
        self._watching = watching or Watching()
        self._allow = allow

    @property
    def config(self) -> RunConfig:
        """The run's settings."""
        return RunConfig.parse_recorded(Record(self.path).config["settings"])

    @property
    def history(self) -> "pd.DataFrame":
        """A row a round, a column a number; ``attrs["units"]`` has each column's unit; needs pandas."""
        frame = pandas().DataFrame(Record(self.path).history)
        frame = frame.drop(columns=[name for name in _NOT_NUMBERS if name in frame])
        frame.attrs["units"] = units(frame.columns, self.metric)
        return frame

    @property
    def clients(self) -> "pd.DataFrame":
        """A data frame with a row a round and client; needs pandas.

        ``round``; ``client``, its name where the data has one, else its client-id; ``decision`` (missing where the
        round did not ask the client); ``loss``, the task's metrics and ``appealed`` of the round's new model on its
        test data (missing in rounds without evaluation); ``requirement``, its rho_k.
        """
        record = Record(self.path)
        required = {line["client-id"]: line["requirement"] for line in record.requirements}
        rows: defaultdict[tuple[int, str], dict[str, Any]] = defaultdict(dict)
        empty: dict[str, Any] = dict.fromkeys(("round", "client", "decision"))
        for line in record.decisions:
            rows[line["round"], line["client-id"]]["decision"] = line["decision"]
        for line in record.measurements:
            figures = {key.replace("-", "_"): line[key] for key in line if key not in ("round", "client-ids")}
            empty |= dict.fromkeys(figures)
            for place, client in enumerate(line["client-ids"]):
                rows[line["round"], client] |= {key: values[place] for key, values in figures.items()}
        order = sorted(rows, key=lambda row: (row[0], natural_order(row[1])))
        names = names_in_data(record.config)
        return pandas().DataFrame(
            [
                {
                    **empty,
                    **{"round": number, "client": names.get(client, client), "requirement": required.get(client)},
                    **rows[number, client],
                }
                for number, client in order
            ],
            columns=[*empty, "requirement"],
        )

    @property
    def rounds(self) -> int:
        """The number of finished rounds."""
        return Record(self.path).snapshot.last_round

    @property
    def finished(self) -> bool:
        """Whether the run is over: all rounds are, or its strategy ended it."""
        ended = Record(self.path).standing.end
        return ended is not None and (bool(ended["reason"]) or self.rounds >= self.config.rounds)

    @property
    def metric(self) -> Metric:
        """The task's primary metric."""
        return Metric.of_record(Record(self.path).config.get("metric"))

    def summary(self) -> dict[str, Any]:
        """Return the latest evaluated round's figures, and totals over all rounds."""
        lines, config = Record(self.path).history, self.config
        summary: dict[str, Any] = {"strategy": config.strategy, "task": config.task, "seed": config.seed}
        summary |= {"rounds": self.rounds, "of": config.rounds, "finished": self.finished}
        evaluated: dict[str, Any] = next((line for line in reversed(lines) if line["evaluated"]), {})
        columns = (column.key for column in shown_in(SUMMARY, self.metric))
        summary |= {key: evaluated[key] for key in columns if key in evaluated}
        totals = Snapshot(rounds=lines).totals
        return summary | {key: totals[key] for key in ("asked", "joined", "bytes_up", "bytes_down", "seconds")}

    def model(self, round: int | None = None) -> "nn.Module":
        """Return the trained model in evaluation mode, on the CPU.

        What stays with the clients (``share``) has its initial values. Checkpoints of a run that is not over may be
        rounds behind it: a warning says which round's model this is. `FinishedRound.model` is its round's own.

        Args:
            round: one of those whose models ``keep_models`` has kept; None: the last one.

        Raises:
            ConfigError: no round is over, this one's model is not kept, or the program's own model was not given to
                `fedappeal.load`.
        """
        if round is not None:
            return self._model_of(kept_model(self.path, round))
        arrays, of_round = self._latest()
        model = self._model_of(arrays)
        if of_round < self.rounds:
            warnings.warn(
                f"this is the model of round {of_round}, {self.rounds} are over: in on_round each.model is the "
                "round's own, and keep_models=N keeps the files of the last N",
                Notice,
                stacklevel=2,
            )
        return model

    def keep(self, path: str | PathLike[str] = "") -> "Run":
        """Keep the folder of a run that has a temporary one; return the run.

        Args:
            path: the new folder; empty: ``runs/DATE-TIME-XXXX-STRATEGY-TASK``.

        Raises:
            ConfigError: the folder stays already, or the new one is there or cannot be made.
        """
        if self.temporary is None:
            raise ConfigError(f"keep is not allowed: the run's folder stays already: '{self.path}'")
        folder = path_of("path", path).absolute() if path not in ("", None) else new_folder(self.path.name)
        try:
            shutil.copytree(self.path, folder, dirs_exist_ok=not path)
        except OSError as error:
            raise ConfigError(f"path = '{folder}' is not allowed: {error.strerror or error}") from None
        self.path, self.temporary = folder, None
        return self

    def report(self) -> Report:
        """Return the run's report, which a notebook shows."""
        return Report(self.path, self.temporary)

    def predict(
        self,
        data: Any,
        *,
        features: Sequence[str] = (),
        label: str = "",
        device: str = "cpu",
        scale_from: Any = None,
    ) -> "pd.DataFrame":
        """Return the finished model's predictions as a data frame, a row an example.

        Needs pandas.

        ``example``, ``label``, its ``probability`` where labels are classes or tokens, and the example's own label as
        ``given``; ``attrs["metrics"]`` holds the metrics of examples with labels; ``attrs["card"]`` the run's, and on
        which data: among what is predicted may be examples that the model was trained on.

        Args:
            data: a file or folder, as ``fedappeal predict --data`` takes it; a DataFrame, a ``datasets.Dataset``, or
                an array of inputs.
            features: of a table, the columns of the inputs; empty: those of the run's own table or task, else all.
            label: of a table, the column of the labels; empty: none is read.
            device: where it predicts.
            scale_from: a table of training data (a file, a DataFrame) or a client's own model, by which columns are
                standardised as the clients' were; ``"pooled"``: all clients' training data; None: each row as its
                client's, which its table names.

        Raises:
            ConfigError: one line: data that do not fit, or as `model`.
        """
        trained = self._trained_model()
        if (scaler := getattr(trained.task, "scaler", None)) is not None:
            pooled = isinstance(scale_from, str) and scale_from == POOLED
            scale_from = scaler.pooled if pooled else scaler if scale_from is None else scale_from
        check_device(device)
        chosen = Columns(names_of(features), label)
        predictions, _ = predict_table(trained, data, chosen, pick_device(device), scale_from)
        frame = pandas().DataFrame(predictions.lines, columns=Prediction._fields)
        frame.attrs |= {"metrics": predictions.metrics, "round": trained.card.round}
        frame.attrs["card"] = {"figures": trained.card.figures, "measured_on": trained.card.measured_on}
        return frame

    def export(self, to: str, output: str | PathLike[str] = "") -> Path:
        """Export the finished model as ``fedappeal export`` does; return the file or folder.

        Args:
            to: ``onnx``, ``safetensors``, ``huggingface`` or ``adapter``.
            output: the file or new folder; empty: in the current folder, called after the run's.

        Raises:
            ConfigError: one line: a form or output that is not allowed, or as `model`.
        """
        file = path_of("output", output) if output else None
        made = check_export(to, file, self.path.name, model_file(self.path))
        export(trained := self._trained_model(), to, made)
        if trained.card.scale != "none":
            warnings.warn(SCALED_OUTSIDE, Notice, stacklevel=2)
        return made

    def _trained_model(self) -> TrainedModel:
        arrays, of_round = self._latest()
        card = read_card(model_file(self.path)).model_copy(update={"round": of_round})
        return TrainedModel(card, self._task(), self._model_of(arrays))

    def resume(self, rounds: int | None = None) -> "Run":
        """Continue the run; return it.

        Args:
            rounds: its new total; None: as it is.

        Raises:
            ConfigError: nothing is left to do, or the program's own objects were not given to `fedappeal.load`.
        """
        config = settings_to_resume(self.path, rounds)
        self._check_given()
        if self._allow is not None:
            check_allowed(config, self.path, self._allow, self._given())
        plan = RunPlan(run_plugins(config, self._given()), self.path, config.strategy, self._data_dir, resumes=True)
        with silence(self._watching.quiet), show_progress(self._watching.quiet) as show:
            self._go(plan, show)
        return self

    def __repr__(self) -> str:
        return f"Run({self._line()})"

    def _repr_html_(self) -> str:
        cells = [(key.replace("_", " "), shown_value(value)) for key, value in self.summary().items()]
        rows = "".join(f"<tr><th>{html.escape(key)}</th><td>{html.escape(value)}</td></tr>" for key, value in cells)
        return f"<table>{rows}<tr><th>path</th><td>{html.escape(short_path(self.path))}</td></tr></table>"

    def _line(self) -> str:
        summary = self.summary()
        parts = [f"{summary['strategy']} on {summary['task']}", f"seed {summary['seed']}"]
        parts.append(f"{summary['rounds']} of {summary['of']} rounds")
        columns = [key for key in summary if key in FIGURES or key == self.metric.column]
        parts += [f"{key.replace('_', ' ')} {shown_value(summary[key])}" for key in columns]
        return printable(", ".join([*parts, short_path(self.path)]))

    def _latest(self) -> tuple[Arrays | ArrayRecord, int]:
        """Return the latest global model on the disk, and its round."""
        if self.finished and (file := self.path / MODEL).exists():
            return read_safetensors(file)[0], read_card(file).round
        if not (self.path / CHECKPOINT).exists():
            raise ConfigError(f"'{self.path}' holds no model: no round is over")
        checkpoint = Checkpoint.read(self.path / CHECKPOINT)
        return checkpoint.arrays, checkpoint.server_round

    def _model_of(self, arrays: Arrays | ArrayRecord) -> "nn.Module":
        """Return the run's model with these values, in evaluation mode, on the CPU."""
        model = self._task().initial_model(self.config.seed)
        named = self._layout.unpack(arrays) if isinstance(arrays, ArrayRecord) else arrays
        load_arrays(model, {**arrays_of(model), **named})
        return model.eval()

    @cached_property
    def _layout(self) -> Layout:
        """The layout of the model's shared arrays."""
        task = self._task()
        model = task.initial_model(self.config.seed)
        return Layout.of(arrays_of(model, parts_of(model, share_of(task)).shared))

    def _task(self) -> Task:
        """Return the run's task.

        Raises:
            ConfigError: it was made of a program's own objects, which are not here.
        """
        if (task := self._given().task) is not None:
            return task
        recorded = Record(self.path).config.get(GIVEN, {}).get("task", {})
        if recorded:
            needed = ", ".join(f"{name}=..." for part in recorded for name in part.split(" and "))
            raise ConfigError(
                f"'{self.path}' holds a run of a program's own: fedappeal.load(path, {needed}) takes it"
            )
        allowed = ALL if self._allow is None else Allowed.of(self._allow, by_call=True)
        return load_task(self.config.task_settings(), self._data_dir, allowed)

    @property
    def _data_dir(self) -> str:
        return self._how.data_dir if self._how else ""

    def _check_given(self) -> None:
        """Check that the program gives all objects with which the run began.

        Raises:
            ConfigError: names those that are not.
        """
        self._task()
        if "strategy" in Record(self.path).config.get(GIVEN, {}) and self._given().strategy is None:
            raise ConfigError(
                f"'{self.path}' holds a run of a program's own: fedappeal.load(path, strategy=...) takes it"
            )

    def _go(self, plan: RunPlan, show: Shown) -> None:
        """Run, or continue, the run; after Ctrl-C it can be continued."""
        watching, models = self._watching, list[ArrayRecord]()

        def on_round(record: RoundRecord) -> None:
            number, line, arrays = record.server_round, record.as_line(), models.pop()
            show(progress_text(plan.name, line, plan.task.metric), number, plan.config.rounds)
            if watching.keep_models:
                keep_model(plan, number, self._layout.unpack(arrays), watching.keep_models)
            if watching.on_round is not None:
                watching.on_round(FinishedRound(number, dict(line), dict(record.decisions), self, arrays))

        how = self._how or Simulation.of_runtime(Record(self.path).config["runtime"])
        check_threads(how.threads)
        evaluate, folder = watching.central(plan, how), plan.folder(how.runtime())
        self.interrupted = False
        try:
            with track_run(plan.path, watching.trackers, partial(warnings.warn, category=Notice)):
                simulate_plan(plan, how, folder, on_round=on_round, on_model=models.append, evaluate=evaluate)
        except KeyboardInterrupt:
            self.interrupted = True
            print(f"interrupted after round {self.rounds}; run.resume() continues it ({short_path(self.path)})")


def run_in_new_folder(
    plan: RunPlan, how: Simulation, watching: Watching, show: Shown, temporary: TemporaryFolder | None = None
) -> Run:
    """Start a checked run in a new folder; return it once it has ended.

    It ends with its last round, or with Ctrl-C.

    Args:
        plan: the run.
        how: how it is simulated.
        watching: what the program wants to see of it.
        show: shows how far it is.
        temporary: holds the run's folder; None: that stays.

    Raises:
        ConfigError: a folder that holds a run, or cannot be made.
    """
    run = Run(plan.path, lambda: plan.plugins.given, how, watching)
    run.temporary = temporary
    run._go(plan, show)
    return run


def shown_value(value: Any) -> str:
    """Return a setting or a number as a table shows it."""
    return f"{value:.3f}" if isinstance(value, float) else str(value)
