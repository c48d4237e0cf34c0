"""What a program gives of its own beside settings: model, data, loss, metrics; and the task that they make."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from fedappeal.api.client_data import PAIRS, clients_of
from fedappeal.api.given import GivenTask, given_task
from fedappeal.api.measures import TASKS_OWN, Measures
from fedappeal.api.tables import NO_COLUMNS, Columns, Rows, rows_of_dataset, rows_of_frame
from fedappeal.settings.config import ConfigError, RunConfig, TaskSettings
from fedappeal.tasks import TASKS, load_task
from fedappeal.tasks.examples import ClientData
from fedappeal.tasks.task import Task

NAME = "own"
"""What a task of own data is called where it has no name."""
_OF_SPLIT = frozenset({"train_share", "max_train_examples"})
_OF_DATA = _OF_SPLIT | {"clients", "unseen_clients", "share", "seed"}
"""Settings of a task that go with own data."""


@dataclass(frozen=True)
class OwnData:
    """A program's own data; converted once for all runs of a sweep.

    Attributes:
        data: pairs, a DataFrame or a Dataset.
        columns: which columns of a table are what.
    """

    data: Any
    columns: Columns = NO_COLUMNS

    @cached_property
    def clients(self) -> "list[ClientData] | Rows":
        """Each client's data; of a table, its rows before they are split.

        Raises:
            ConfigError: data of another kind, or that cannot be used.
        """
        kind = type(self.data)
        packages = {each.__module__.partition(".")[0] for each in kind.__mro__}  # neither is imported for that
        if "pandas" in packages:
            return rows_of_frame(self.data, self.columns)
        if "datasets" in packages:
            return rows_of_dataset(self.data, self.columns)
        if self.columns != NO_COLUMNS:
            raise ConfigError("client, label, features and partitioner go with a DataFrame or a datasets.Dataset")
        if not isinstance(self.data, Sequence) or isinstance(self.data, str):
            raise ConfigError(
                f"data is not allowed: a {kind.__name__}; {PAIRS}, a DataFrame or a datasets.Dataset is"
            )
        return clients_of(self.data)

    @property
    def names(self) -> Sequence[str]:
        """What the data calls its clients; their numbers where they have no names."""
        clients = self.clients
        return [str(k) for k in range(len(clients))] if isinstance(clients, list) else clients.names

    def settings(self, settings: Mapping[str, Any], task: Any) -> dict[str, Any]:
        """Return the settings that follow from the data.

        Args:
            settings: those that are given, in snake case.
            task: what the data is to be called.

        Raises:
            ConfigError: a setting that means nothing for own data, or another number of clients.
        """
        if task is not None and (not isinstance(task, str) or task in TASKS.names() or ":" in task):
            name = task if isinstance(task, str) else getattr(task, "name", type(task).__name__)
            raise ConfigError(f"task = {name!r} is not allowed beside data: there it is what tables call the data")
        if wrong := sorted((settings.keys() & TaskSettings.model_fields.keys()) - _OF_DATA):
            raise ConfigError(f"{wrong[0]} = {settings[wrong[0]]!r} is not allowed beside data, which is shared out")
        if isinstance(self.clients, list) and (wrong := sorted(settings.keys() & _OF_SPLIT)):
            raise ConfigError(f"{wrong[0]} is not allowed beside (train, test) pairs, which are split already")
        total, unseen = len(self.names), settings.get("unseen_clients", 0)
        if not isinstance(unseen, int) or not 0 <= unseen < total:
            raise ConfigError(f"unseen_clients = {unseen} is not allowed: 0 to {total - 1} of the data's {total}")
        if settings.get("clients", total - unseen) != total - unseen:
            of_which = f", {unseen} of them unseen" if unseen else ""
            raise ConfigError(f"clients = {settings['clients']} is not allowed: the data has {total}{of_which}")
        return {"task": task or NAME, "clients": total - unseen}


@dataclass(frozen=True)
class Own:
    """A program's own parts of a task.

    Attributes:
        data: None: the task's.
        model: see `fedappeal.api.given.GivenModel`; None: the task's.
        measures: loss and metrics.
    """

    data: OwnData | None = None
    model: Any = None
    measures: Measures = TASKS_OWN

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> "Own":
        """Return the parts that are among the arguments of `fedappeal.simulate`.

        Raises:
            ConfigError: columns without data, or a loss or metrics that are not allowed.
        """
        columns = Columns(given["client"], given["label"], tuple(given["features"]), given["partitioner"])
        if given["data"] is None and columns != NO_COLUMNS:
            raise ConfigError("data is missing: client, label, features and partitioner go with it")
        data = None if given["data"] is None else OwnData(given["data"], columns)
        return cls(data, given["model"], Measures.of(given["loss"], given["metrics"]))

    @property
    def given(self) -> bool:
        """Whether there is any."""
        return self.data is not None or self.model is not None or self.measures != TASKS_OWN

    def task(self, config: RunConfig, base: Task | None, data_dir: str) -> GivenTask:
        """Return the task for a run.

        Args:
            config: the run's settings.
            base: a program's own task object; None: the one that the settings name, where there are no own data.
            data_dir: folder of a known task's data set.

        Raises:
            ConfigError: parts that do not fit.
        """
        settings = config.task_settings()
        if self.data is None:
            known = base or load_task(settings, Path(data_dir) if data_dir else None)
            return given_task(settings, known, self.model, self.measures)
        clients = self.data.clients
        if isinstance(clients, list):
            return given_task(settings, clients, self.model, self.measures)
        return given_task(settings, clients.shared_out(settings), self.model, self.measures, clients.class_names)
