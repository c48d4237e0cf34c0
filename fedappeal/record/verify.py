"""What is damaged in a run's folder, by file and line."""

from collections.abc import Iterator
from pathlib import Path

from fedappeal.record.files import REQUIREMENTS, WRITTEN_ON
from fedappeal.record.lines import written_lines
from fedappeal.record.reader import Record
from fedappeal.settings.config import ConfigError
from fedappeal.system.checksum import check
from fedappeal.system.files import read_values


def damages(path: Path) -> Iterator[str]:
    """Yield one line for each damage: a line of a file, or a file of arrays; a line cut off by a crash is none.

    Raises:
        ConfigError: the folder holds no run.
    """
    Record(path).check()
    for name in (*WRITTEN_ON, REQUIREMENTS):
        file = path / name
        try:
            for written in written_lines(file):
                problem = written.problem
                try:
                    written.parsed()
                except ValueError as error:
                    problem = str(error)
                if problem:
                    yield f"file '{file}' is damaged: line {written.number}: {problem}"
        except (OSError, ValueError) as error:
            yield f"file '{file}' is damaged: {error}"
    for file in sorted(path.glob("*.safetensors")):
        try:
            read_values(file)
            check(file)
        except ConfigError as error:
            yield str(error)
        except (OSError, ValueError) as error:
            yield f"file '{file}' is damaged: {error}"


def unchecked(path: Path) -> Iterator[str]:
    """Yield one line for each file of which an earlier version wrote lines, which have no checksum."""
    for name in (*WRITTEN_ON, REQUIREMENTS):
        lines = list(written_lines(path / name)) if (path / name).is_file() else []
        first = next((line.number for line in lines if line.check), len(lines) + 1)
        if first > 1:
            which = f"lines 1 to {first - 1}" if first <= len(lines) else "lines"
            yield f"file '{path / name}': its {which} have no checksum: an earlier version wrote them"
