"""Texts: the settings of their tasks, and a table of them, from a file or a folder that `datasets` saved."""

import csv
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field

from fedappeal.core.plugins import PluginSettings
from fedappeal.settings.config import Count, CountOrZero
from fedappeal.system.packages import require
from fedappeal.tasks.examples import Labels
from fedappeal.tasks.files.data_size import bounded_lines, check_parquet, check_texts


class TextSettings(PluginSettings):
    """Settings that all tasks on texts share.

    Paths are relative to each machine's own ``data-dir``, and stay inside it: a run names files of a client's machine
    only where its owner keeps what is for such runs.
    """

    model_dir: str = Field(
        "", description="folder under data-dir with a model and its tokenizer, as transformers saves"
    )
    random_weights: bool = Field(
        False, description="draw all weights from the seed: of the folder, config.json and tokenizer alone are read"
    )
    data: str = Field(
        "", description="texts under data-dir: .csv, .jsonl, .parquet, or a folder that datasets saved (one split)"
    )
    text_column: str = Field("text", min_length=1, description="column of the texts")
    client_column: str = Field(
        "", description="column that says whose row it is, for partition = natural; empty: the rows are shared out"
    )
    max_length: Count = Field(128, description="tokens of each text: longer texts are cut, shorter ones padded")
    lora_rank: CountOrZero = Field(
        8, description="rank of the LoRA adapters; 0: none, all weights are trained and sent"
    )
    lora_alpha: Count = Field(16, description="scale of the adapters: they count alpha / rank times")
    lora_targets: str = Field(
        "",
        description="layers with adapters, names by commas; empty: PEFT's for the model; all-linear: each linear one",
    )
    evaluation_batch: Count = Field(
        64, description="texts a forward pass of an evaluation: bounds the memory it takes"
    )


Column = list[Any]
_KINDS = ".csv, .jsonl, .parquet, or a folder that datasets saved"


@dataclass(frozen=True)
class Table:
    """Texts, a row each.

    Attributes:
        texts: none of them blank.
        labels: 0..C-1, shape ``(n,)``; all 0 where texts have none.
        owners: whose each row is; empty where the table does not say.
    """

    texts: Sequence[str]
    labels: Labels
    owners: Sequence[str]


def read_table(
    path: Path,
    text_column: str,
    label_column: str = "",
    label_names: Sequence[str] = (),
    owner_column: str = "",
) -> Table:
    """Return the texts of a table.

    Args:
        path: a file, or a folder that `datasets` saved.
        text_column: its column of texts.
        label_column: its column of labels, their names or numbers; empty: the texts have none.
        label_names: the labels' names, in their order.
        owner_column: its column of clients; empty: it has none.

    Raises:
        ValueError: what cannot be read, or is not allowed; says where.
        ConfigError: a package that reads it is not installed.
    """
    names = [name for name in (text_column, label_column, owner_column) if name]
    columns = dict(zip(names, _read_columns(path, names), strict=True))
    for row, text in enumerate(columns[text_column], start=1):
        if not isinstance(text, str) or not text.strip():
            raise ValueError(f"row {row} has no text: {text!r}")
    texts = columns[text_column]
    numbers = _label_numbers(columns[label_column], label_names) if label_column else [0] * len(texts)
    owners = [str(owner) for owner in columns[owner_column]] if owner_column else []
    return Table(texts, np.array(numbers, dtype=np.int64), owners)


def _read_columns(path: Path, wanted: Sequence[str]) -> list[Column]:
    """Return the wanted columns of a table, one value a row."""
    if path.is_dir():
        columns = _saved(path, wanted)
    elif (reader := {".csv": _csv, ".jsonl": _jsonl, ".parquet": _parquet}.get(path.suffix.lower())) is None:
        raise ValueError(f"not a table of texts: {_KINDS}")
    else:
        columns = reader(path, wanted)
    if not columns[0]:
        raise ValueError("it has no rows")
    for name, column in zip(wanted, columns, strict=True):
        if None in column:
            raise ValueError(f"row {column.index(None) + 1} has no '{name}'")
    return columns


def _check(wanted: Sequence[str], columns: Sequence[str]) -> None:
    if missing := [name for name in wanted if name not in columns]:
        raise ValueError(f"it has no column '{missing[0]}' (it has {', '.join(columns) or 'none'})")


def _csv(path: Path, wanted: Sequence[str]) -> list[Column]:
    with path.open(newline="", encoding="utf-8-sig") as file:
        try:
            rows = csv.DictReader(bounded_lines(file))
            _check(wanted, rows.fieldnames or [])
            return _by_column(list(rows), wanted)
        except csv.Error as error:
            raise ValueError(f"line {rows.line_num} cannot be read ({error})") from None


def _jsonl(path: Path, wanted: Sequence[str]) -> list[Column]:
    rows: list[dict[str, Any]] = []
    with path.open(encoding="utf-8-sig") as file:
        for number, line in enumerate(bounded_lines(file), start=1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except ValueError as error:
                raise ValueError(f"line {number} is not JSON ({error})") from None
            if not isinstance(row, dict):
                raise ValueError(f"line {number} is not a JSON object")
            rows.append(row)
    if rows:
        _check(wanted, list(rows[0]))
    return _by_column(rows, wanted)


def _by_column(rows: Sequence[dict[str, Any]], wanted: Sequence[str]) -> list[Column]:
    return [[row.get(name) for row in rows] for name in wanted]


def _parquet(path: Path, wanted: Sequence[str]) -> list[Column]:
    require("a .parquet file needs pyarrow", "tables", "pyarrow")
    from pyarrow import ArrowException, parquet

    try:
        file = parquet.ParquetFile(path, read_dictionary=list(wanted))
        _check(wanted, file.schema_arrow.names)
        check_parquet(path, file, wanted)
        table = file.read(columns=list(wanted))
    except (ArrowException, OSError) as error:
        raise ValueError(f"it cannot be read ({error})") from None
    for column in table.columns:
        check_texts(column.combine_chunks())
    return [table.column(name).to_pylist() for name in wanted]


def _saved(path: Path, wanted: Sequence[str]) -> list[Column]:
    require("a folder that datasets saved needs datasets", "data", "datasets")
    from datasets import Dataset, load_from_disk

    try:
        saved = load_from_disk(str(path))
    except Exception as error:  # its errors are of many kinds
        raise ValueError(f"not a folder that datasets saved ({error})") from None
    if not isinstance(saved, Dataset):
        raise ValueError(f"it holds several splits: name one of {', '.join(saved)}")
    _check(wanted, saved.column_names)
    return [list(saved[name]) for name in wanted]


def _label_numbers(values: Sequence[Any], names: Sequence[str]) -> list[int]:
    """Return labels as numbers 0..C-1; each is given as its name or its number."""
    number_of: dict[str, int] = {str(number): number for number in range(len(names))}
    number_of |= {name: number for number, name in enumerate(names)}  # "1" to "5" are names where they are stars
    numbers = [number_of.get(str(value)) for value in values]
    if None in numbers:
        row = numbers.index(None)
        raise ValueError(
            f"row {row + 1} has the label '{values[row]}': {', '.join(names)}, or 0 to {len(names) - 1} are allowed"
        )
    return [number for number in numbers if number is not None]
