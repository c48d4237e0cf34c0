"""Which reader a table's file or folder has."""

import os
from collections.abc import Callable
from pathlib import Path

from fedappeal.data.arrow import ParquetTable, SavedDataset
from fedappeal.data.columns import ENDINGS, Unfit
from fedappeal.data.table import Table
from fedappeal.data.text_files import CsvTable, JsonLines
from fedappeal.protocol.keys import DataProblem


def check_regular(path: Path) -> None:
    """Check that a path is a file's.

    Raises:
        Unfit: nothing is there, or a pipe or device.
    """
    if not path.is_file():
        there = "it is no file, but a pipe, a device or a link that leads nowhere"
        raise Unfit(DataProblem.UNREADABLE, there if os.path.lexists(path) else "no such file or folder")


def open_table(path: Path) -> Table:
    """Return a file, or a folder that `datasets` saved, as a table.

    Raises:
        ValueError: no file, another kind, or what cannot be read.
        ConfigError: pyarrow is not installed for one that needs it.
    """
    if path.is_dir():
        return SavedDataset(path)
    check_regular(path)
    kinds: dict[str, Callable[[Path], Table]] = {".csv": CsvTable, ".jsonl": JsonLines, ".parquet": ParquetTable}
    if (kind := kinds.get(path.suffix.lower())) is None:
        raise ValueError(f"no table: {', '.join(ENDINGS)}, or a folder that datasets saved")
    return kind(path)
