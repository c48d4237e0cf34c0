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

        def rows() -> Iterator[_Row]:
            with _opened(self._path) as file, _named_errors(self._reader(file)) as reader:
                next(reader, None)
                for number, cells in enumerate(filter(None, reader), start=1):  # without empty lines
                    if len(cells) == width:
                        yield reader.line_num, [cells[place] for place in places]
                    else:
                        where = RowNumbers(number, 1, [reader.line_num]).where(0)
                        reason = f"has {len(cells)} cells, the header {width}"
                        problems.add(DataProblem.SHAPE, "cells", where, reason)
                        yield reader.line_num, None

        yield from _in_pieces(rows(), len(places))


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

        def rows() -> Iterator[_Row]:
            with _opened(self._path) as file:
                for number, pairs in _objects(file):
                    row = dict(pairs)
                    if twice := [name for name in wanted if sum(key == name for key, _ in pairs) > 1]:
                        problems.add(DataProblem.COLUMNS, "twice", f"line {number}", f"has '{twice[0]}' twice")
                    yield number, None if twice else [row.get(name) for name in wanted]

        yield from _in_pieces(rows(), len(wanted))


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


_Row = tuple[int, list[Any] | None]
"""A row's line, and its cells; None: it is left out."""


def _in_pieces(rows: Iterator[_Row], width: int) -> Iterator[tuple[RowNumbers, list[Cells]]]:
    """Yield rows as columns, many at a time; a row that is left out ends a piece."""
    most, first = max(1, _CELLS_AT_ONCE // max(1, width)), 1
    lines, piece, characters = list[int](), list[list[Any]](), 0

    def columns() -> Iterator[tuple[RowNumbers, list[Cells]]]:
        if piece:
            yield RowNumbers(first, len(piece), lines), list(map(list, zip(*piece, strict=True))) or [[]] * width

    for number, (line, cells) in enumerate(rows, start=1):
        if cells is not None:
            lines.append(line)
            piece.append(cells)
            characters += sum(len(cell) for cell in cells if isinstance(cell, str))
        if cells is None or len(piece) >= most or characters > _CHARACTERS_AT_ONCE:
            yield from columns()
            lines, piece, characters, first = [], [], 0, number + 1
    yield from columns()
