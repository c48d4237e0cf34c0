"""The lines that are added to a file of JSON lines, each read once."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fedappeal.protocol.foreign_text import all_printable, parse_json
from fedappeal.record.lines import LONGEST_TEXT


class Tail:
    """Reads what is added to a file; a file that is replaced is read from its start.

    Attributes:
        replaced: whether the latest `read` found another file than the one before it.
    """

    def __init__(self, path: Path) -> None:
        self.replaced = False
        self._path = path
        self._inode: int | None = None
        self._offset = 0

    def read(self) -> Iterator[dict[str, Any]]:
        """Yield the whole lines that are new, cleaned; damaged ones are left out.

        Raises:
            OSError: the file cannot be read.
        """
        self.replaced = False
        try:
            file = open(self._path, "rb")  # noqa: SIM115 # closed by the block below
        except FileNotFoundError:
            return
        with file:
            state = os.fstat(file.fileno())
            if self._inode is not None and (state.st_ino != self._inode or state.st_size < self._offset):
                self.replaced, self._offset = True, 0
            self._inode = state.st_ino
            file.seek(self._offset)
            for text in file:
                if not text.endswith(b"\n"):
                    return  # it is being written
                self._offset += len(text)
                if (line := _line(text)) is not None:
                    yield line


def _line(text: bytes) -> dict[str, Any] | None:
    try:
        line = parse_json(text.decode(errors="backslashreplace"))
    except ValueError:
        return None
    if not isinstance(line, dict) or type(line.get("round", 0)) is not int:
        return None
    cleaned: dict[str, Any] = all_printable(line, LONGEST_TEXT)
    return cleaned
