"""Sizes of a Parquet file's pages by the header of each page: a footer may state other sizes."""

from typing import Any, BinaryIO

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
