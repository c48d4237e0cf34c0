"""Limit of the memory that a file's data may take, checked before the data is read."""

import errno
import os
import struct
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, BinaryIO, TextIO

from fedappeal.settings.config import ConfigError

_I32 = 5
_DEEPEST = 8
_LAST_FIELD = 99
"""Limits far above the three structures and eight fields of a page's header."""

Fields = dict[int, int]


def unpacked_size(file: BinaryIO, part: Any) -> int:
    """Return the bytes of a column's pages in one row group, decompressed.

    Args:
        file: the Parquet file.
        part: the column in the row group, from pyarrow's footer; pyarrow reads the same range of the file.

    Raises:
        ValueError: a page's header cannot be read.
    """
    start, dictionary = part.data_page_offset, part.dictionary_page_offset
    _check(start >= 0)
    file.seek(dictionary if dictionary and 0 < dictionary < start else start)
    end, size = file.tell() + part.total_compressed_size, 0
    while file.tell() < end:
        header = _structure(file)
        unpacked, packed = header.get(2, -1), header.get(3, -1)
        _check(min(unpacked, packed) >= 0)
        size += unpacked
        file.seek(packed, 1)
    return size


def _structure(file: BinaryIO, depth: int = 0) -> Fields:
    """Return the 32-bit integers of the next structure, by field, in Thrift's compact protocol."""
    _check(depth < _DEEPEST)
    fields: Fields = {}
    field = 0
    while head := _byte(file):
        step, kind = divmod(head, 16)
        field += step
        _check(step > 0 and field <= _LAST_FIELD)
        if kind in (4, _I32, 6):
            number = _varint(file)
            if kind == _I32:  # Thrift ignores a field of another kind than its own
                fields[field] = (number >> 1) ^ -(number & 1)
        elif kind == 12:
            _structure(file, depth + 1)
        else:  # false, true, a byte, a double or bytes
            _check(kind in (1, 2, 3, 7, 8))
            file.seek(_varint(file) if kind == 8 else {3: 1, 7: 8}.get(kind, 0), 1)
    return fields


def _varint(file: BinaryIO) -> int:
    """Return the next integer's lower 32 bits."""
    number = 0
    for shift in range(0, 70, 7):
        byte = _byte(file)
        number |= (byte & 127) << shift
        if byte < 128:
            break
    return number & 0xFFFFFFFF


def _byte(file: BinaryIO) -> int:
    byte = file.read(1)
    _check(byte != b"")
    return byte[0]


def _check(holds: bool) -> None:
    if not holds:
        raise ValueError("the header of a page cannot be read")


MAX_DATA = "FEDAPPEAL_MAX_DATA"
"""Environment variable: megabytes of memory that one file's or folder's data may take."""
_DEFAULT = 2000
_MEGABYTE = 10**6
LONGEST_LINE = 1 << 24
"""Characters of a line of text."""


def check_size(size: int, what: str) -> None:
    """Check that data fit into the memory that they may take.

    Args:
        size: bytes in memory.
        what: what needs them, ``its arrays``.

    Raises:
        ValueError: they do not; names the limit.
        ConfigError: the limit is no number of megabytes.
    """
    text = os.environ.get(MAX_DATA) or str(_DEFAULT)
    if not (text.isascii() and text.isdigit() and int(text)):
        raise ConfigError(f"{MAX_DATA} = '{text}' is not allowed: megabytes, 1 or more")
    if size > int(text) * _MEGABYTE:
        needed = f"{what} need {-(-size // _MEGABYTE):,} MB in memory"
        raise ValueError(f"{needed}: at most {int(text):,} MB are allowed (environment variable {MAX_DATA})")


def read_small(path: Path) -> str:
    """Return the text of a small file, which may be reached through a link.

    Raises:
        ValueError: it is larger than `LONGEST_LINE`, or no text.
        OSError: it cannot be read, or is a pipe.
    """
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, f"{path.name} is no file")
    with open(path, encoding="utf-8") as file:
        text = file.read(LONGEST_LINE + 1)
    if len(text) > LONGEST_LINE:
        raise ValueError(f"{path.name} is longer than {LONGEST_LINE:,} characters")
    return text


def bounded_lines(file: TextIO) -> Iterator[str]:
    """Yield the lines of a text file.

    Raises:
        ValueError: a line is too long.
    """
    number = 0
    while line := file.readline(LONGEST_LINE + 1):
        number += 1
        if len(line) > LONGEST_LINE:
            raise ValueError(f"line {number} is longer than {LONGEST_LINE:,} characters")
        yield line


def check_parquet(path: str | os.PathLike[str], file: Any, names: Collection[str]) -> None:
    """Check the size of a Parquet file's columns by its page headers.

    Its number of rows counts too.

    Args:
        path: the file.
        file: pyarrow's reader of it.
        names: the columns that are read.

    Raises:
        ValueError: they are too large, a page's header cannot be read, or a column holds lists or structures, whose
            size no header tells.
    """
    from pyarrow import types

    for name in names:
        if types.is_nested(kind := file.schema_arrow.field(name).type) and not types.is_dictionary(kind):
            raise ValueError(f"column {name} holds {kind}: numbers and texts are allowed")
    footer = file.metadata
    check_size(8 * footer.num_rows * len(names), "its columns")
    groups = (footer.row_group(number) for number in range(footer.num_row_groups))
    parts = (group.column(number) for group in groups for number in range(group.num_columns))
    with open(path, "rb") as pages:
        size = sum(unpacked_size(pages, part) for part in parts if part.path_in_schema in names)
    check_size(size, "its columns")


_DICTIONARY, _BATCH = 2, 3


def check_stream(messages: Any, columns: int) -> None:
    """Check the sizes of an Arrow stream's batches by their heads.

    Only as far as the stream's own bytes do not bound them.

    Args:
        messages: pyarrow's reader of the stream's messages.
        columns: how many are read.

    Raises:
        ValueError: the rows are too many, for nulls take no bytes; or what is compressed, as `datasets` never does.
    """
    rows = 0
    for message in messages:
        head = memoryview(message.metadata)
        table = _offset(head, 0)
        kind, batch = _field(head, table, 1), _field(head, table, 2)
        if kind is None or batch is None or head[kind] not in (_DICTIONARY, _BATCH):
            continue
        batch = _offset(head, batch)
        if head[kind] == _DICTIONARY:
            if (data := _field(head, batch, 1)) is None:
                continue
            batch = _offset(head, data)
        if _field(head, batch, 3) is not None:
            raise ValueError("its batches are compressed: datasets saves none so")
        if (length := _field(head, batch, 0)) is not None:
            rows += abs(struct.unpack_from("<q", head, length)[0])
        check_size(8 * rows * columns, "its columns")


def _offset(head: memoryview, place: int) -> int:
    """Return the place of a flatbuffer table to which another place refers."""
    return int(place + struct.unpack_from("<I", head, place)[0])


def _field(head: memoryview, table: int, number: int) -> int | None:
    """Return the place of a table's field; None without such a field."""
    vtable = table - struct.unpack_from("<i", head, table)[0]
    end = struct.unpack_from("<H", head, vtable)[0]
    offset = struct.unpack_from("<H", head, vtable + 4 + 2 * number)[0] if 4 + 2 * number < end else 0
    return int(table + offset) if offset else None


def check_texts(column: Any) -> None:
    """Check the size of all texts of a dictionary-encoded column.

    Raises:
        ValueError: they are: a text may be in the file once, and in many rows.
    """
    from pyarrow import compute, types

    if types.is_dictionary(column.type) and len(column):
        size = compute.sum(compute.binary_length(column.dictionary).take(column.indices)).as_py()
        check_size(size or 0, "its texts")
