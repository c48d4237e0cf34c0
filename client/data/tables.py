"""Tables: a CSV file, a header line, then a line an example; or a Parquet file.

The standard library reads a CSV, row by row, so that a large file needs no more memory than its numbers. Cells are
parted by commas, semicolons or tabs, whichever parts the header into the most names; decimals have a point. pyarrow
reads Parquet, in batches of rows.
"""

import csv
import math
from array import array
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from client.data.columns import Columns, Unfit
from client.data.raw import LabelReader
from fedappeal.protocol.keys import DataProblem
from fedappeal.tasks.files.data_size import bounded_lines, check_parquet, check_size, check_texts

_DELIMITERS = ",;\t"
_ROWS_AT_ONCE = 8_192


def names_of(path: str) -> list[str]:
    """Return the names of a table's columns.

    Raises:
        Unfit: no header, a file that cannot be read, or no pyarrow for one that needs it.
    """
    if _is_parquet(path):
        with _opened_parquet(path) as file:
            return list(file.schema_arrow.names)
    with _opened_csv(path) as (names, _):
        return names


def check_table(path: str, chosen: Columns) -> None:
    """Read a table and keep nothing; raises as `read_table`."""
    for _ in _parts(path, chosen, LabelReader(known=False)):
        pass


def read_table(path: str, chosen: Columns, labels: LabelReader) -> NDArray[np.generic]:
    """Return a table's features, shape ``(n, features)``; its labels go to ``labels``.

    Args:
        path: the file.
        chosen: the columns that are read.
        labels: reads the labels.

    Returns:
        Integers where each number is a whole one, as it is written or by its column's type; else float64.

    Raises:
        Unfit: rows of other lengths, empty cells, what is no number, labels that do not fit; says row and column.
    """
    values, whole = array("d"), True
    for number, (numbers, integers) in enumerate(_parts(path, chosen, labels)):
        whole = whole and integers
        values.extend(numbers)
        if not number % _ROWS_AT_ONCE:
            check_size(values.itemsize * len(values), "its numbers")
    return narrowed(np.asarray(values).reshape(-1, len(chosen.features)), whole)


def _is_parquet(path: str) -> bool:
    return path.lower().endswith(".parquet")


def _parts(path: str, chosen: Columns, labels: LabelReader) -> Iterator[tuple[Iterable[float], bool]]:
    """Yield the numbers of some rows, one after another, and whether they are whole; labels go to ``labels``."""
    return (_batches if _is_parquet(path) else _rows)(path, chosen, labels)


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
def _opened_csv(path: str) -> Iterator[tuple[list[str], Any]]:
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


def _rows(path: str, chosen: Columns, labels: LabelReader) -> Iterator[tuple[list[float], bool]]:
    """Yield each row's numbers, and whether all so far are whole; its label goes to ``labels``."""
    with _opened_csv(path) as (names, reader):
        places = [names.index(name) for name in chosen.features]
        label, width = names.index(chosen.label) if chosen.label else None, len(names)
        row, whole = 0, True
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
                if label is not None:
                    labels.add(cells[label])
            except Unfit as error:
                raise _in_cell(row, reader.line_num, chosen.label, error.problem, str(error)) from None
            whole = whole and _whole(picked)
            yield numbers, whole


def _is_number(cell: str) -> bool:
    try:
        return math.isfinite(float(cell))
    except ValueError:
        return False


def _in_cell(row: int, line: int, column: str, problem: DataProblem, reason: str) -> Unfit:
    return Unfit(problem, f"row {row} (line {line}), column {column}: {reason}")


@contextmanager
def _opened_parquet(path: str, chosen: Columns | None = None) -> Iterator[Any]:
    """Open a Parquet file; the chosen columns are checked before any of them is read."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise Unfit(
            DataProblem.UNREADABLE, "a .parquet needs pyarrow: pip install 'fedappeal[tables]' (a .csv needs nothing)"
        ) from None
    try:
        # A text stands in the file once, and in memory too: as a dictionary
        texts = [chosen.label] if chosen and chosen.label else []
        with pyarrow.parquet.ParquetFile(path, pre_buffer=False, read_dictionary=texts) as file:
            if chosen:
                for name in chosen.features:
                    _check_kind(file.schema_arrow.field(name).type, name)
                check_parquet(path, file, chosen.names)
            yield file
    except pyarrow.ArrowException as error:
        raise Unfit(DataProblem.UNREADABLE, f"it is no Parquet file that can be read ({error})") from None


def _batches(path: str, chosen: Columns, labels: LabelReader) -> "Iterator[tuple[array[float], bool]]":
    """Yield the numbers of each batch of rows, and whether all columns hold integers; labels go to ``labels``."""
    with _opened_parquet(path, chosen) as file:
        from pyarrow import array as texts
        from pyarrow import string, types

        first, whole = 0, all(types.is_integer(file.schema_arrow.field(name).type) for name in chosen.features)
        for batch in file.iter_batches(batch_size=_ROWS_AT_ONCE, columns=list(chosen.names)):
            numbers = np.empty((batch.num_rows, len(chosen.features)))
            for place, name in enumerate(chosen.features):
                numbers[:, place] = _numbers(batch.column(name), name, first)
            label_texts = batch.column(chosen.label) if chosen.label else texts([], string())
            check_texts(label_texts)
            for row, value in enumerate(label_texts.to_pylist(), start=first + 1):
                try:
                    labels.add(value)
                except Unfit as error:
                    raise Unfit(error.problem, f"row {row}, column {chosen.label}: {error}") from None
            yield array("d", numbers.tobytes()), whole
            first += batch.num_rows


def _check_kind(kind: Any, name: str) -> None:
    from pyarrow import types

    if not any(is_kind(kind) for is_kind in (types.is_integer, types.is_floating, types.is_decimal)):
        raise Unfit(DataProblem.VALUES, f"column {name} holds {kind}: numbers are allowed")


def _numbers(column: Any, name: str, first: int) -> NDArray[np.float64]:
    import pyarrow

    numbers: NDArray[np.float64] = column.cast(pyarrow.float64(), safe=False).to_numpy(zero_copy_only=False)
    wrong = np.flatnonzero(~np.isfinite(numbers))
    if len(wrong):
        empty = not column[int(wrong[0])].is_valid
        reason = "the cell is empty" if empty else f"'{numbers[wrong[0]]}' is no finite number"
        raise Unfit(DataProblem.VALUES, f"row {first + int(wrong[0]) + 1}, column {name}: {reason}")
    return numbers
