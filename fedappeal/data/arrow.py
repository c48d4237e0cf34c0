"""Tables in Apache Arrow's formats: Parquet, and folders that `datasets` saved; by pyarrow, in batches of rows."""

import struct
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from fedappeal.data.cells import Cells
from fedappeal.data.columns import SPLITS, STATE, Unfit, places_of, plain
from fedappeal.data.data_size import check_parquet, check_stream, check_texts, read_small
from fedappeal.data.table import Problems, RowNumbers, Table
from fedappeal.protocol.foreign_text import parse_json
from fedappeal.protocol.keys import DataProblem
from fedappeal.system.packages import require

_ROWS_AT_ONCE = 8_192


class ArrowTable(Table):
    """A table with typed columns."""

    def __init__(self, path: Path) -> None:
        """Read the columns' names and types.

        Raises:
            Unfit: it cannot be read; ConfigError: pyarrow is not installed.
        """
        require("a .parquet file or a saved dataset needs {} (a .csv or .jsonl needs nothing)", "tables", "pyarrow")
        self.path = path
        with self._errors():
            self.schema = self._read_schema()
        self.names = list(map(plain, self.schema.names))
        self.class_names = _class_names(self.schema)

    @abstractmethod
    def _read_schema(self) -> Any:
        """Return the schema."""

    @abstractmethod
    def _batches(self, wanted: Sequence[str]) -> AbstractContextManager[Iterator[Any]]:
        """Open the file; yield its record batches with the wanted columns."""

    def pieces(self, wanted: Sequence[str], problems: Problems) -> Iterator[tuple[RowNumbers, list[Cells]]]:
        """Yield the wanted columns, one record batch at a time."""
        columns = [self.schema.names[place] for place in places_of(self.names, wanted)]
        first = 1
        with self._errors(), self._batches(columns) as batches:
            for batch in batches:
                yield RowNumbers(first, batch.num_rows), [cells_of(batch.column(name), name) for name in columns]
                first += batch.num_rows

    @contextmanager
    def _errors(self) -> Iterator[None]:
        import pyarrow

        try:
            yield
        except (pyarrow.ArrowException, OSError) as error:
            raise Unfit(DataProblem.UNREADABLE, f"it cannot be read ({error})") from None


class ParquetTable(ArrowTable):
    """A Parquet file."""

    def _read_schema(self) -> Any:
        from pyarrow import parquet

        return parquet.read_schema(self.path)

    @contextmanager
    def _batches(self, wanted: Sequence[str]) -> Iterator[Iterator[Any]]:
        from pyarrow import parquet, types

        # A text stands in the file once, and in memory too: as a dictionary.
        texts = [name for name in wanted if types.is_string(kind := self.schema.field(name).type) or _is_large(kind)]
        with parquet.ParquetFile(self.path, pre_buffer=False, read_dictionary=texts) as file:
            check_parquet(self.path, file, wanted)
            yield file.iter_batches(batch_size=_ROWS_AT_ONCE, columns=list(wanted))


class SavedDataset(ArrowTable):
    """A saved `datasets` folder of one split."""

    def _read_schema(self) -> Any:
        from pyarrow import ipc

        try:
            if (self.path / SPLITS).is_file():
                splits = ", ".join(map(str, parse_json(read_small(self.path / SPLITS))["splits"]))
                raise Unfit(DataProblem.UNREADABLE, f"it holds several splits: name one of {splits}")
            names = [str(file["filename"]) for file in parse_json(read_small(self.path / STATE))["_data_files"]]
        except Unfit:
            raise
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise Unfit(DataProblem.UNREADABLE, f"it is no folder that datasets saved ({error})") from None
        if not names or any(Path(name).name != name for name in names):
            raise Unfit(DataProblem.UNREADABLE, f"it is no folder that datasets saved ({STATE} names no files of it)")
        self._files = [self.path / name for name in names]
        if pipes := [file.name for file in self._files if file.exists() and not file.is_file()]:
            raise Unfit(DataProblem.UNREADABLE, f"its {pipes[0]} is no file")
        with ipc.open_stream(self._files[0]) as stream:
            return stream.schema

    @contextmanager
    def _batches(self, wanted: Sequence[str]) -> Iterator[Iterator[Any]]:
        yield (batch for file in self._files for batch in _stream(file, len(wanted)))


def _stream(file: Path, columns: int) -> Iterator[Any]:
    from pyarrow import ipc, memory_map

    with memory_map(str(file)) as source:
        try:
            check_stream(ipc.MessageReader.open_stream(source), columns)
        except (struct.error, IndexError) as error:
            raise Unfit(DataProblem.UNREADABLE, f"{file.name} cannot be read ({error})") from None
        source.seek(0)
        with ipc.open_stream(source) as stream:
            for batch in stream:
                batch.validate(full=True)  # texts' offsets may point anywhere
                yield batch


def _is_large(kind: Any) -> bool:
    from pyarrow import types

    return bool(types.is_large_string(kind))


def _class_names(schema: Any) -> Mapping[str, Sequence[str]]:
    """Return the names that `datasets` recorded of its columns of classes."""
    try:
        features = parse_json((schema.metadata or {}).get(b"huggingface", b"{}"))["info"]["features"]
        return {plain(name): [str(n) for n in kind["names"]] for name, kind in features.items() if "names" in kind}
    except (ValueError, KeyError, TypeError, AttributeError):
        return {}


def cells_of(column: Any, name: str) -> Cells:
    """Return an Arrow array's cells.

    Raises:
        Unfit: it holds neither numbers, booleans nor texts; ValueError: its texts are too large.
    """
    import pyarrow
    from pyarrow import types

    if types.is_dictionary(column.type):
        check_texts(column)
        column = column.dictionary_decode()
    kind = column.type
    if types.is_decimal(kind):
        column = column.cast(pyarrow.float64(), safe=False)
    elif types.is_floating(kind) or types.is_integer(kind) or types.is_boolean(kind):
        pass
    elif not (types.is_string(kind) or _is_large(kind) or types.is_null(kind)):
        raise Unfit(DataProblem.VALUES, f"column {name} holds {kind}: numbers and texts are allowed")
    else:
        return column.to_pylist()  # type: ignore[no-any-return]
    if column.null_count:
        return column.to_pylist()  # type: ignore[no-any-return]
    return column.to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]
