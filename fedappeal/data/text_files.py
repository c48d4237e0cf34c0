"""Tables in files of text: CSV, and JSON lines.

The standard library reads them, not pyarrow: its reader of CSV takes a stray quote for the begin of a cell and joins
the rows up to the next one without a word, and is 130 MB that a small device would need for this alone.
"""

import csv
import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from fedappeal.data.cells import Cells
from fedappeal.data.columns import Unfit, places_of, plain
from fedappeal.data.data_size import bounded_lines
from fedappeal.data.table import Problems, RowNumbers, Table
from fedappeal.protocol.keys import DataProblem

_DELIMITERS = ",;\t"
_CELLS_AT_ONCE = 1 << 16
_CHARACTERS_AT_ONCE = 1 << 22
_OF_EXCEL = re.compile('"?sep=.?"?', re.IGNORECASE)
_UTF_16 = (b"\xff\xfe", b"\xfe\xff")


@contextmanager
def _opened(path: Path) -> Iterator[TextIO]:
    with path.open("rb") as file:
        if file.read(2) in _UTF_16:
            raise Unfit(DataProblem.UNREADABLE, "it is a text in UTF-16: UTF-8 is needed")
    try:
        with path.open(newline="", encoding="utf-8-sig") as text:
            yield text
    except UnicodeDecodeError as error:
        raise Unfit(DataProblem.UNREADABLE, f"it is no text in UTF-8 ({error.reason})") from None


class CsvTable(Table):
    """A CSV file with a header line, by commas, semicolons or tabs.

    Whichever parts the header most.
    """

    def __init__(self, path: Path) -> None:
        """Read the header.

        Raises:
            Unfit: there is none.
        """
        self._path = path
        with _opened(path) as file:
            first = next(bounded_lines(file), "")
            parted = {d: next(csv.reader([first], delimiter=d, skipinitialspace=True), []) for d in _DELIMITERS}
            self._delimiter = max(_DELIMITERS, key=lambda d: len(parted[d]))
            file.seek(0)
            with _named_errors(self._reader(file)) as reader:
                self.names = [plain(name) for name in next(reader, [])]
        if _OF_EXCEL.fullmatch(first.strip()):
            raise Unfit(DataProblem.COLUMNS, "its first line is Excel's 'sep=', not names of columns: delete it")
        if not any(self.names) or "\0" in "".join(self.names):
            raise Unfit(DataProblem.COLUMNS, "its first line holds no names of columns")

    def _reader(self, file: TextIO) -> Any:
        return csv.reader(bounded_lines(file), delimiter=self._delimiter, skipinitialspace=True, strict=True)

    def pieces(self, wanted: Sequence[str], problems: Problems) -> Iterator[tuple[RowNumbers, list[Cells]]]:
        """Yield the wanted columns piece by piece; every cell is a text."""
        places, width = places_of(self.names, wanted), len(self.names)
        with _opened(self._path) as file, _named_errors(self._reader(file)) as reader:
            next(reader, None)
            piece = _Piece(len(places))
            for cells in reader:
                if not cells:  # an empty line
                    continue
                if len(cells) == width:
                    piece.add(reader.line_num, [cells[place] for place in places])
                else:
                    row = RowNumbers(piece.row, 1, [reader.line_num])
                    reason = f"has {len(cells)} cells, the header {width}"
                    problems.add(DataProblem.SHAPE, "cells", row.where(0), reason)
                    yield from piece.left_out()
                if piece.is_full:
                    yield from piece.taken()
            yield from piece.taken()


@contextmanager
def _named_errors(reader: Any) -> Iterator[Any]:
    """Raise a reader's error as that of a line that is no CSV."""
    try:
        yield reader
    except csv.Error as error:
        reason = f"{error}, in line {reader.line_num}: is there a quote too many or too few?"
        raise Unfit(DataProblem.UNREADABLE, f"it is no CSV that can be read ({reason})") from None


class JsonLines(Table):
    """A file with one JSON object a line; the first line names the columns."""

    def __init__(self, path: Path) -> None:
        """Read the first line.

        Raises:
            ValueError: it is no JSON object.
        """
        self._path = path
        with _opened(path) as file:
            self.names = next((list(dict(pairs)) for _, pairs in _objects(file)), [])

    def pieces(self, wanted: Sequence[str], problems: Problems) -> Iterator[tuple[RowNumbers, list[Cells]]]:
        """Yield the wanted keys piece by piece; a key that a line lacks is missing."""
        places_of(self.names, wanted)
        with _opened(self._path) as file:
            piece = _Piece(len(wanted))
            for number, pairs in _objects(file):
                row = dict(pairs)
                if twice := [name for name in wanted if sum(key == name for key, _ in pairs) > 1]:
                    problems.add(DataProblem.COLUMNS, "twice", f"line {number}", f"has '{twice[0]}' twice")
                    yield from piece.left_out()
                else:
                    piece.add(number, [row.get(name) for name in wanted])
                if piece.is_full:
                    yield from piece.taken()
            yield from piece.taken()


def _objects(file: TextIO) -> Iterator[tuple[int, list[tuple[str, object]]]]:
    """Yield each line's number, and its object's keys and values."""
    for number, line in enumerate(bounded_lines(file), start=1):
        if not line.strip():
            continue
        try:
            pairs = json.loads(line, object_pairs_hook=list)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"line {number} is not JSON ({error})") from None
        if not isinstance(pairs, list) or not line.lstrip().startswith("{"):
            raise ValueError(f"line {number} is not a JSON object")
        yield number, [(plain(key), value) for key, value in pairs]


class _Piece:
    """Rows gathered until there are enough for a piece.

    Attributes:
        row: number of the next row, counted from 1.
    """

    def __init__(self, width: int) -> None:
        self.row = 1
        self._most = max(1, _CELLS_AT_ONCE // max(1, width))
        self._width = width
        self._rows: list[list[Any]] = []
        self._lines: list[int] = []
        self._characters = 0

    def add(self, line: int, cells: list[Any]) -> None:
        """Add a row."""
        self.row += 1
        self._rows.append(cells)
        self._lines.append(line)
        self._characters += sum(len(cell) for cell in cells if isinstance(cell, str))

    @property
    def is_full(self) -> bool:
        """Whether the piece has enough rows."""
        return len(self._rows) >= self._most or self._characters > _CHARACTERS_AT_ONCE

    def taken(self) -> Iterator[tuple[RowNumbers, list[Cells]]]:
        """Yield the rows as columns, if any, and remove them."""
        if rows := self._rows:
            columns: list[Cells] = [list(cells) for cells in zip(*rows, strict=True)] or [[]] * self._width
            yield RowNumbers(self.row - len(rows), len(rows), self._lines), columns
            self._rows, self._lines, self._characters = [], [], 0

    def left_out(self) -> Iterator[tuple[RowNumbers, list[Cells]]]:
        """Yield the rows taken so far (`taken`), and count a skipped row."""
        yield from self.taken()
        self.row += 1
