"""Tables of any format, and their features and labels as numbers; all that is wrong with the rows in one message."""

import math
import os
from array import array
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from fedappeal.data.arrow import ParquetTable, SavedDataset
from fedappeal.data.cells import Cells, Classes, is_empty, numbers_of, to_list, why_no_number
from fedappeal.data.columns import ENDINGS, Columns, Unfit, plain
from fedappeal.data.data_size import check_size
from fedappeal.data.table import Problems, RowNumbers, Table
from fedappeal.data.text_files import CsvTable, JsonLines
from fedappeal.protocol.keys import DataProblem


def check_regular(path: Path) -> None:
    """Check that a path is a file's.

    Raises:
        Unfit: nothing is there, or a pipe or device.
    """
    if not path.is_file():
        there = "it is no file, but a pipe, a device or a link that leads nowhere"
        raise Unfit(DataProblem.UNREADABLE, there if os.path.lexists(path) else "no such file or folder")


def open_table(path: Path) -> Table:
    """Return a file, or a folder that `datasets` saved, as a table.

    Raises:
        ValueError: no file, another kind, or what cannot be read.
        ConfigError: pyarrow is not installed for one that needs it.
    """
    if path.is_dir():
        return SavedDataset(path)
    check_regular(path)
    kinds: dict[str, Callable[[Path], Table]] = {".csv": CsvTable, ".jsonl": JsonLines, ".parquet": ParquetTable}
    if (kind := kinds.get(path.suffix.lower())) is None:
        raise ValueError(f"no table: {', '.join(ENDINGS)}, or a folder that datasets saved")
    return kind(path)


class Features:
    """A reader of feature columns: numbers, and categories as one 0/1 column each value.

    Attributes:
        table: the table.
        names: of the columns.
        width: number of inputs of a row.
    """

    def __init__(
        self, table: Table, names: Sequence[str], categories: Mapping[str, Sequence[str]] = MappingProxyType({})
    ) -> None:
        """Take the columns.

        Args:
            table: the table.
            names: of the columns.
            categories: of columns that hold no numbers: their values; an empty cell is allowed where ``""`` is one.
        """
        self.table, self.names = table, tuple(names)
        self._categories = {plain(name): Classes(values) for name, values in categories.items()}
        self._widths = [len(self._categories[name].names) if name in self._categories else 1 for name in names]
        self.width = sum(self._widths)

    def read(self, rows: RowNumbers, cells: Sequence[Cells], problems: Problems) -> tuple[NDArray[np.float64], bool]:
        """Return rows' inputs ``(n, width)``, and whether all are whole.

        Cells that cannot be read are added to the problems.
        """
        numbers, whole, place = np.empty((rows.count, self.width)), True, 0
        for column, name, width in zip(cells, self.names, self._widths, strict=True):
            classes = self._categories.get(name)
            if classes is None:
                values, integers = numbers_of(column)
                whole = whole and integers
            else:
                values = classes.labels_of(_by_names(column, self.table, name))
            wrong = ~np.isfinite(values)
            if wrong.any() and (other := wrong & ~add_empty(rows, column, name, problems)).any():
                cell = column[int(other.argmax())]
                reason = f"'{cell}' is none of its values: {classes.allowed}" if classes else why_no_number(cell)
                rows.add_to(problems, DataProblem.VALUES, "number", name, other, reason)
            block = values[:, None]
            numbers[:, place : place + width] = block if classes is None else block == np.arange(width)
            place += width
        return numbers, whole


def check_rows(table: Table, columns: Columns) -> None:
    """Check a table's rows before the task is known, keeping nothing.

    Errors as `read_numbers`.
    """
    problems = Problems()
    for rows, cells in table.pieces(columns.names, problems):
        numbers = [(name, cell) for name, cell in zip(columns.features, cells, strict=False) if not _are_texts(cell)]
        Features(table, [name for name, _ in numbers]).read(rows, [cell for _, cell in numbers], problems)
        if columns.label:
            add_empty(rows, cells[-1], columns.label, problems, DataProblem.LABELS)
    problems.check()


def _are_texts(cells: Cells) -> bool:
    """Whether a column may hold categories: no cell begins like a number.

    Decimal commas begin like one.
    """
    texts = [] if isinstance(cells, np.ndarray) else [cell for cell in cells if not is_empty(cell)]
    return bool(texts) and all(isinstance(cell, str) and cell.strip()[0].isalpha() for cell in texts)


def read_numbers(
    features: Features, label: str = "", classes: Classes | None = None
) -> tuple[NDArray[np.float64], bool, NDArray[np.float64]]:
    """Return a table's inputs ``(n, width)``, whether all are whole, and labels ``(n,)``.

    Args:
        features: the columns of the inputs.
        label: the column of the labels; empty: none are read.
        classes: reads the labels.

    Raises:
        Unfit: rows of other lengths, empty cells, what is no number, labels that do not fit: all of it, by row and
            column, the first of each kind; ValueError: the table cannot be read, or needs too much memory.
    """
    values, labels, whole, problems = array("d"), array("d"), True, Problems()
    wanted = [*features.names, *([label] if label else [])]
    for rows, cells in features.table.pieces(wanted, problems):
        check_size(values.itemsize * (len(values) + rows.count * features.width), "its numbers")
        numbers, integers = features.read(rows, cells[: len(features.names)], problems)
        whole = whole and integers
        values.frombytes(numbers.tobytes())
        if label and classes:
            labels.frombytes(read_labels(rows, cells[-1], features.table, label, classes, problems).tobytes())
    problems.check()
    return np.asarray(values).reshape(-1, features.width), whole, np.asarray(labels)


def add_empty(
    rows: RowNumbers, cells: Cells, column: str, problems: Problems, problem: DataProblem = DataProblem.VALUES
) -> NDArray[np.bool_]:
    """Return the mask of a column's empty cells, and add them to the problems."""
    empty = np.array([is_empty(cell) for cell in cells], dtype=bool)
    rows.add_to(problems, problem, "empty", column, empty, "the cell is empty")
    return empty


def read_labels(
    rows: RowNumbers, cells: Cells, table: Table, column: str, classes: Classes, problems: Problems
) -> NDArray[np.float64]:
    """Return rows' labels; NaN, and a problem, where one does not fit."""
    labels = classes.labels_of(_by_names(cells, table, column) if classes.names else cells)
    wrong = ~np.isfinite(labels)
    if wrong.any():
        reason = classes.why_no_label(cells[int(wrong.argmax())])
        rows.add_to(problems, DataProblem.LABELS, "label", column, wrong, reason)
    return labels


def _by_names(cells: Cells, table: Table, column: str) -> Cells:
    """Return a column's cells with numbers replaced by the names they stand for.

    Other numbers are missing.
    """
    if column not in table.class_names:
        return cells
    by_number: Mapping[object, str] = dict(enumerate(table.class_names[column]))
    return [by_number.get(cell) for cell in to_list(cells)]


def narrow_integers(x: NDArray[np.float64], whole: bool) -> NDArray[np.generic]:
    """Return whole numbers as int32, or int64 if too large; others unchanged."""
    largest = max(-x.min(), x.max()) if whole and x.size else math.inf
    if largest >= 2**63:
        return x
    return x.astype(np.int32 if largest < 2**31 else np.int64)
