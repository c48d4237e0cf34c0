"""The columns of a table that are read, and what is wrong with a table."""

import csv
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedappeal.protocol.keys import DataProblem
from fedappeal.settings.config import ConfigError

ENDINGS = (".csv", ".jsonl", ".parquet")
"""Of files that are tables."""
STATE, SPLITS = "state.json", "dataset_dict.json"
"""Files by which a folder is one that `datasets` saved: of one split, and of several."""
_SHOWN = 20


def is_table(data: str) -> bool:
    """Whether a path names a table: a file by its ending, or a saved dataset."""
    path = Path(data)
    if path.is_dir():
        return (path / STATE).is_file() or (path / SPLITS).is_file()
    return path.suffix.lower() in ENDINGS


class Unfit(ValueError):
    """A fault of data, before it is known of which data."""

    def __init__(self, problem: DataProblem, message: str) -> None:
        super().__init__(message)
        self.problem = problem


def plain(name: object) -> str:
    """Return a name stripped of blanks, in one of Unicode's normal forms; empty for None.

    Accents have two.
    """
    return unicodedata.normalize("NFC", "" if name is None else str(name).strip())


def names_of(columns: Any) -> tuple[str, ...]:
    """Return the names of columns that a program gives, as texts or numbers: one, or several; empty or None: none."""
    if isinstance(columns, Iterable) and not isinstance(columns, str):
        return tuple(plain(str(name)) for name in columns)
    return () if columns in ("", None) else names_of([columns])


@dataclass(frozen=True)
class Columns:
    """The columns to read of a table, chosen by the owner or by `choose`.

    Attributes:
        features: names of the features, in the order of the inputs; empty, as an owner's choice: those that the task
            names, else all columns but the label.
        label: name of the column of labels; empty: none is read.
    """

    features: tuple[str, ...] = ()
    label: str = ""

    def __post_init__(self) -> None:
        self.__dict__.update(features=names_of(self.features), label=plain(self.label))

    @property
    def names(self) -> tuple[str, ...]:
        """All columns' names, a label last."""
        return (*self.features, *([self.label] if self.label else []))

    @classmethod
    def parse(cls, features: str, label: str) -> "Columns":
        """Return the choice; ``features`` is a list by commas, with quotes as in a CSV.

        Raises:
            ConfigError: a name that is empty or given twice, or a label that is a feature.
        """
        names = [plain(name) for name in next(csv.reader([features], skipinitialspace=True), [])]
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
    check_label(names, columns, needs_label)
    features = columns.features or tuple(map(plain, of_task)) or tuple(n for n in names if n != columns.label)
    chosen = Columns(features, columns.label)
    places_of(names, [name for name in chosen.names if name])
    if not all(features):
        raise Unfit(DataProblem.COLUMNS, f"column {names.index('') + 1} has no name: choose the features (features)")
    if not features:
        raise Unfit(DataProblem.COLUMNS, f"it has no column but {columns.label}: features are needed")
    return chosen


def check_label(names: Sequence[str], columns: Columns, needs_label: bool = True) -> None:
    """Check the columns that the owner names, with the label.

    Errors are those of `choose`.
    """
    if needs_label and not columns.label:
        raise Unfit(DataProblem.COLUMNS, f"label is missing: which column holds the labels ({name_list(names)})")
    places_of(names, columns.names)


def places_of(names: Sequence[str], wanted: Sequence[str]) -> list[int]:
    """Return the indices of the wanted columns in a table, from 0.

    Raises:
        Unfit: a column that is not there, or there twice.
    """
    if missing := [name for name in wanted if name not in names]:
        reason = f"it has no column {' and no column '.join(missing)} (its header: {name_list(names)})"
        raise Unfit(DataProblem.COLUMNS, reason)
    if twice := [name for name in wanted if names.count(name) > 1]:
        raise Unfit(DataProblem.COLUMNS, f"{names.count(twice[0])} of its columns are called {twice[0]}")
    return [names.index(name) for name in wanted]


def name_list(names: Sequence[str]) -> str:
    """Return the first 20 names as a message's list."""
    return ", ".join([*names[:_SHOWN], *(["..."] if len(names) > _SHOWN else [])])
