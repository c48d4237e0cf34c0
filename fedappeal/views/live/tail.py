"""A JSON-lines file that grows, read on from where it was last read."""

from pathlib import Path
from typing import Any

from fedappeal.protocol.foreign_text import all_printable, parse_json


class Tail:
    """Reads what is added to a file; a run that continues replaces its files, which are then read anew."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file, self._offset = 0, 0

    def read(self) -> tuple[list[dict[str, Any]], bool]:
        """Return the lines that are new, and whether they are the first of a file that replaced the last one.

        A line that is not finished yet is read next time; a damaged one is left out.
        """
        try:
            with self._path.open("rb") as file:
                number = self._path.stat().st_ino
                anew = self._offset > 0 and (number != self._file or file.seek(0, 2) < self._offset)
                if number != self._file or anew:
                    self._file, self._offset = number, 0
                file.seek(self._offset)
                content = file.read()
        except OSError:
            return [], False
        whole = content[: content.rfind(b"\n") + 1]
        self._offset += len(whole)
        return [line for text in whole.splitlines() if (line := _parsed(text)) is not None], anew


def _parsed(text: bytes) -> dict[str, Any] | None:
    try:
        line = parse_json(text)
    except ValueError:
        return None
    return all_printable(line) if isinstance(line, dict) else None
