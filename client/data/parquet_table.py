"""A table in a Parquet file, read with pyarrow in batches of rows."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from client.data.columns import Chosen
from client.data.csv_table import narrowed
from client.data.label_reader import LabelReader
from client.data.unfit import Unfit
from fedappeal.protocol.keys import DataProblem
from fedappeal.tasks.files.data_size import check_parquet, check_texts

_ROWS_AT_ONCE = 8_192


def parquet_names(path: str) -> list[str]:
    """Return the columns' names.

    Raises:
        Unfit: no pyarrow, or no Parquet file.
    """
    with _opened(path) as file:
        return list(file.schema_arrow.names)


def check_parquet_table(path: str, chosen: Chosen) -> None:
    """Read a table and keep nothing; raises as `read_parquet`."""
    with _opened(path, chosen) as file:
        for _ in _batches(file, chosen, LabelReader(known=False)):
            pass


def read_parquet(path: str, chosen: Chosen, labels: LabelReader) -> NDArray[np.generic]:
    """Return a table's features, shape ``(n, features)``; its labels go to ``labels``.

    Args:
        path: the file.
        chosen: the columns that are read.
        labels: reads the labels.

    Returns:
        Integers where all columns hold integers, else float64.

    Raises:
        Unfit: no pyarrow, columns without numbers, empty cells, labels that do not fit; says row and column.
    """
    import pyarrow

    with _opened(path, chosen) as file:
        schema = file.schema_arrow
        whole = all(pyarrow.types.is_integer(schema.field(name).type) for name in chosen.features)
        x = np.empty((file.metadata.num_rows, len(chosen.features)))
        for first, numbers in _batches(file, chosen, labels):
            x[first : first + len(numbers)] = numbers
    return narrowed(x, whole)


@contextmanager
def _opened(path: str, chosen: Chosen | None = None) -> Iterator[Any]:
    """Open a Parquet file; the chosen columns are checked before any of them is read."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise Unfit(
            DataProblem.UNREADABLE, "a .parquet needs pyarrow: pip install 'fedappeal[tables]' (a .csv needs nothing)"
        ) from None
    try:
        texts = [chosen.label] if chosen else []  # in the file once, and in memory too: as a dictionary
        with pyarrow.parquet.ParquetFile(path, pre_buffer=False, read_dictionary=texts) as file:
            if chosen:
                for name in chosen.features:
                    _check_kind(file.schema_arrow.field(name).type, name)
                check_parquet(path, file, chosen.names)
            yield file
    except pyarrow.ArrowException as error:
        raise Unfit(DataProblem.UNREADABLE, f"it is no Parquet file that can be read ({error})") from None


def _batches(file: Any, chosen: Chosen, labels: LabelReader) -> Iterator[tuple[int, NDArray[np.float64]]]:
    """Yield features in batches, each with the number of its first row; labels go to ``labels``."""
    first = 0
    for batch in file.iter_batches(batch_size=_ROWS_AT_ONCE, columns=list(chosen.names)):
        numbers = np.empty((batch.num_rows, len(chosen.features)))
        for place, name in enumerate(chosen.features):
            numbers[:, place] = _numbers(batch.column(name), name, first)
        check_texts(batch.column(chosen.label))
        for row, value in enumerate(batch.column(chosen.label).to_pylist(), start=first + 1):
            try:
                labels.add(value)
            except Unfit as error:
                raise Unfit(error.problem, f"row {row}, column {chosen.label}: {error}") from None
        yield first, numbers
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
