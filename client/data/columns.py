"""The kind of data that a name stands for, and the columns of a table that are read."""

import csv
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fedappeal.protocol.keys import DataProblem
from fedappeal.settings.config import ConfigError


class Unfit(ValueError):
    """Something wrong with the data, not yet said of which data."""

    def __init__(self, problem: DataProblem, message: str) -> None:
        super().__init__(message)
        self.problem = problem


class OwnDataError(Unfit, ConfigError):
    """Data that a client cannot use.

    The message names files and values: it is for the owner, not for the server.

    Attributes:
        problem: all that the server may learn.
    """


class OwnDataRefused(ConfigError):
    """A client's own data do not fit a run; the message holds nothing of them.

    Attributes:
        client_id: the client.
        problem: what is wrong.
    """

    def __init__(self, client_id: str, problem: DataProblem) -> None:
        super().__init__(f"{problem.text} (the client's log says why)")
        self.client_id = client_id
        self.problem = problem


TABLES = (".csv", ".parquet")
"""The endings of tables."""
_SHOWN = 20
_FUNCTION = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


def is_function(data: str) -> bool:
    """Whether data of this name is a function ``package.module:load``, and no file."""
    return bool(_FUNCTION.fullmatch(data)) and not Path(data).exists()


def is_table(path: str) -> bool:
    """Whether data of this name is a table."""
    return Path(path).suffix.lower() in TABLES


@dataclass(frozen=True)
class Columns:
    """Columns of a table that are read: the owner's choice of them, or what `choose` makes of it.

    Attributes:
        features: names of the features, in the order of the inputs; empty, as an owner's choice: those that the task
            names, else all columns but the label.
        label: name of the column of labels; empty: none is read.
    """

    features: tuple[str, ...] = ()
    label: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """All of them, a label last."""
        return (*self.features, *([self.label] if self.label else []))

    @classmethod
    def parse(cls, features: str, label: str) -> "Columns":
        """Return the choice; ``features`` is a list by commas, with quotes as in a CSV.

        Raises:
            ConfigError: a name that is empty or given twice, or a label that is a feature.
        """
        names = [name.strip() for name in next(csv.reader([features], skipinitialspace=True), [])]
        twice = [name for name in names if names.count(name) > 1]
        if not all(names) or twice:
            reason = f"'{twice[0]}' is named twice" if twice else "a name is empty"
            raise ConfigError(f"features = '{features}' is not allowed: {reason} (names of columns, by commas)")
        if label and label in names:
            raise ConfigError(f"label = '{label}' is not allowed: it is one of the features = '{features}'")
        return cls(tuple(names), label)


def choose(names: Sequence[str], columns: Columns, of_task: Sequence[str] = (), needs_label: bool = True) -> Columns:
    """Return the columns of a table that are read.

    Args:
        names: of all columns of the table, in its order.
        columns: the owner's choice.
        of_task: the task's names of its features; empty where it names none.
        needs_label: whether there has to be one.

    Raises:
        Unfit: a column that is missing, without a name, or there twice.
    """
    if needs_label and not columns.label:
        raise Unfit(DataProblem.COLUMNS, f"label is missing: which column holds the labels ({shown(names)})")
    features = columns.features or tuple(of_task) or tuple(name for name in names if name != columns.label)
    chosen = Columns(features, columns.label)
    missing = [name for name in chosen.names if name and name not in names]
    if missing:
        reason = f"it has no column {' and no column '.join(missing)} (its header: {shown(names)})"
        raise Unfit(DataProblem.COLUMNS, reason)
    twice = [name for name in chosen.names if names.count(name) > 1]
    if twice and twice[0]:
        raise Unfit(DataProblem.COLUMNS, f"{names.count(twice[0])} of its columns are called {twice[0]}")
    if not all(features):
        raise Unfit(DataProblem.COLUMNS, f"column {names.index('') + 1} has no name: choose the features (features)")
    if not features:
        raise Unfit(DataProblem.COLUMNS, f"it has no column but {columns.label}: features are needed")
    return chosen


def shown(names: Sequence[str]) -> str:
    """Return names as a line lists them, the first 20."""
    return ", ".join([*names[:_SHOWN], *(["..."] if len(names) > _SHOWN else [])])
