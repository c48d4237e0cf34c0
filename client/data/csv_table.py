"""A table in a CSV file: a header line, then a line an example.

The standard library reads it, row by row, so that a large file needs no more memory than its numbers. Cells are
parted by commas, semicolons or tabs, whichever parts the header into the most names; decimals have a point.
"""

import csv
import math
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from client.data.columns import Chosen
from client.data.label_reader import LabelReader
from client.data.unfit import Unfit
from fedappeal.protocol.keys import DataProblem
from fedappeal.tasks.files.data_size import bounded_lines, check_size

_DELIMITERS = ",;\t"
_ROWS_AT_ONCE = 8_192


def csv_names(path: str) -> list[str]:
    """Return the columns' names, as the header has them.

    Raises:
        Unfit: no header, or a file that cannot be read as text.
    """
    with _opened(path) as (names, _):
        return names


def check_csv(path: str, chosen: Chosen) -> None:
    """Read a table and keep nothing; raises as `read_csv`."""
    for _ in _rows(path, chosen, LabelReader(known=False)):
        pass


def read_csv(path: str, chosen: Chosen, labels: LabelReader) -> NDArray[np.generic]:
    """Return a table's features, shape ``(n, features)``; its labels go to ``labels``.

    Args:
        path: the file.
        chosen: the columns that are read.
        labels: reads the labels.

    Returns:
        Integers where each cell is written as a whole number, else float64.

    Raises:
        Unfit: rows of other lengths, empty cells, what is no number, labels that do not fit; says row and column.
    """
    values, whole = array("d"), True
    for row, (cells, numbers) in enumerate(_rows(path, chosen, labels)):
        whole = whole and _whole(cells)
        values.extend(numbers)
        if not row % _ROWS_AT_ONCE:
            check_size(values.itemsize * len(values), "its numbers")
    return narrowed(np.asarray(values).reshape(-1, len(chosen.features)), whole)


def narrowed(x: NDArray[np.float64], whole: bool) -> NDArray[np.generic]:
    """Return whole numbers as int32, or int64 where one is too large; others unchanged."""
    largest = max(-x.min(), x.max()) if whole and x.size else math.inf
    if largest >= 2**63:
        return x
    return x.astype(np.int32 if largest < 2**31 else np.int64)


def _whole(cells: Sequence[str]) -> bool:
    text = "".join(cells).replace("-", "")
    return text.isascii() and text.isdigit()


@contextmanager
def _opened(path: str) -> Iterator[tuple[list[str], Any]]:
    """Open a CSV file; give its columns' names, and a reader that stands behind them."""
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            first = next(bounded_lines(file), "")
            parted = {d: next(csv.reader([first], delimiter=d, skipinitialspace=True), []) for d in _DELIMITERS}
            file.seek(0)
            delimiter = max(_DELIMITERS, key=lambda d: len(parted[d]))
            reader = csv.reader(bounded_lines(file), delimiter=delimiter, skipinitialspace=True, strict=True)
            names = [name.strip() for name in next(reader, [])]
            if not any(names):
                raise Unfit(DataProblem.COLUMNS, "its first line holds no names of columns")
            yield names, reader
    except UnicodeDecodeError as error:
        raise Unfit(DataProblem.UNREADABLE, f"it is no text in UTF-8 ({error.reason})") from None
    except csv.Error as error:
        raise Unfit(DataProblem.UNREADABLE, f"it is no CSV that can be read ({error})") from None


def _rows(path: str, chosen: Chosen, labels: LabelReader) -> Iterator[tuple[list[str], list[float]]]:
    """Yield each row's feature cells and their numbers; its label goes to ``labels``."""
    with _opened(path) as (names, reader):
        places = [names.index(name) for name in chosen.features]
        label, width = names.index(chosen.label), len(names)
        row = 0
        for cells in reader:
            if not cells:  # an empty line
                continue
            row += 1
            if len(cells) != width:
                reason = f"row {row} (line {reader.line_num}) has {len(cells)} cells, the header {width}"
                raise Unfit(DataProblem.SHAPE, reason)
            picked = [cells[place] for place in places]
            try:
                numbers = list(map(float, picked))
                if not math.isfinite(sum(numbers)) and not all(map(math.isfinite, numbers)):
                    raise ValueError
            except ValueError:
                at, cell = next((i, c) for i, c in enumerate(picked) if not _is_number(c))
                reason = "the cell is empty" if not cell.strip() else f"'{cell}' is no finite number"
                raise _in_cell(row, reader.line_num, chosen.features[at], DataProblem.VALUES, reason) from None
            try:
                labels.add(cells[label])
            except Unfit as error:
                raise _in_cell(row, reader.line_num, chosen.label, error.problem, str(error)) from None
            yield picked, numbers


def _is_number(cell: str) -> bool:
    try:
        return math.isfinite(float(cell))
    except ValueError:
        return False


def _in_cell(row: int, line: int, column: str, problem: DataProblem, reason: str) -> Unfit:
    return Unfit(problem, f"row {row} (line {line}), column {column}: {reason}")
