"""Which reader a table's file or folder has."""

from collections.abc import Callable
from pathlib import Path

from fedappeal.data.arrow import ParquetTable, SavedDataset
from fedappeal.data.columns import ENDINGS
from fedappeal.data.table import Table
from fedappeal.data.text_files import CsvTable, JsonLines


def open_table(path: Path) -> Table:
    """Return a file, or a folder that `datasets` saved, as a table.

    Raises:
        ValueError: another kind, or what cannot be read; ConfigError: pyarrow is not installed for one that needs it.
    """
    if path.is_dir():
        return SavedDataset(path)
    kinds: dict[str, Callable[[Path], Table]] = {".csv": CsvTable, ".jsonl": JsonLines, ".parquet": ParquetTable}
    if (kind := kinds.get(path.suffix.lower())) is None:
        raise ValueError(f"no table: {', '.join(ENDINGS)}, or a folder that datasets saved")
    return kind(path)
