"""Limit of the memory that a file's data may take, checked before the data is read."""

import os
from collections.abc import Collection, Iterator
from typing import Any, TextIO

from fedappeal.settings.config import ConfigError
from fedappeal.tasks.files.parquet_pages import unpacked_size

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
    """Check the size of a Parquet file's columns by its number of rows and by the headers of its pages.

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


def check_texts(column: Any) -> None:
    """Check the size of all rows' texts of a column that was read as a dictionary.

    Raises:
        ValueError: they are: a text may be in the file once, and in many rows.
    """
    from pyarrow import compute, types

    if types.is_dictionary(column.type) and len(column):
        size = compute.sum(compute.binary_length(column.dictionary).take(column.indices)).as_py()
        check_size(size or 0, "its texts")
