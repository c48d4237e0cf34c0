"""Texts as data: settings of their tasks, and tables of them.

A table comes from a file, or from a folder that `datasets` saved.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedappeal.core.plugins import PluginSettings
from fedappeal.data.cells import Cells, Classes, client_of, is_empty
from fedappeal.data.columns import places_of, plain
from fedappeal.data.data_size import check_size
from fedappeal.data.read import open_table, read_labels
from fedappeal.data.table import Problems, RowNumbers
from fedappeal.protocol.keys import DataProblem
from fedappeal.settings.config import Count, CountOrZero
from fedappeal.tasks.examples import Labels


class TextSettings(PluginSettings):
    """Settings that all tasks on texts share.

    Paths are relative to each machine's own ``data-dir``, and stay inside it: a run names files of a client's machine
    only where its owner keeps what is for such runs.
    """

    model_dir: str = ""
    """folder under data-dir with a model and its tokenizer, as transformers saves"""
    random_weights: bool = False
    """draw all weights from the seed: of the folder, config.json and tokenizer alone are read"""
    data: str = ""
    """texts under data-dir: .csv, .jsonl, .parquet, or a folder that datasets saved (one split)"""
    text_column: str = Field("text", min_length=1)
    """column of the texts"""
    client_column: str = ""
    """column that says whose row it is, for partition = natural; empty: the rows are shared out"""
    max_length: Count = 128
    """tokens of each text: longer texts are cut, shorter ones padded"""
    lora_rank: CountOrZero = 8
    """rank of the LoRA adapters; 0: none, all weights are trained and sent"""
    lora_alpha: Count = 16
    """scale of the adapters: they count alpha / rank times"""
    lora_targets: str = ""
    """layers with adapters, names by commas; empty: PEFT's for the model; all-linear: each linear one"""
    evaluation_batch: Count = 64
    """texts a forward pass of an evaluation: bounds the memory it takes"""


@dataclass(frozen=True)
class Texts:
    """Texts, a row each.

    Attributes:
        texts: none of them blank, shape ``(n,)``.
        labels: 0..C-1, shape ``(n,)``; all 0 where texts have none.
        owners: whose each row is; empty where the table does not say.
    """

    texts: NDArray[np.object_]
    labels: Labels
    owners: Sequence[str]


def read_table(
    path: Path,
    text_column: str,
    label_column: str = "",
    label_names: Sequence[str] = (),
    owner_column: str = "",
) -> Texts:
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
    table, problems = open_table(path), Problems()
    text_column, label_column, owner_column = map(plain, (text_column, label_column, owner_column))
    wanted = [name for name in (text_column, label_column, owner_column) if name]
    places_of(table.names, wanted)
    classes = Classes(label_names, len(label_names))
    texts: list[str] = []
    labels: list[NDArray[np.float64]] = []
    owners: list[str] = []
    size = 0
    for rows, columns in table.pieces(wanted, problems):
        cells = dict(zip(wanted, columns, strict=True))
        texts += _texts(rows, cells[text_column], text_column, problems)
        size += sum(map(len, texts[-rows.count :]))
        check_size(size, "its texts")
        if label_column:
            labels.append(read_labels(rows, cells[label_column], table, label_column, classes, problems))
        if owner_column:
            clients = [None if cell is None else str(client_of(cell)) for cell in cells[owner_column]]
            owners += _texts(rows, clients, owner_column, problems)
    problems.check()
    if not texts:
        raise ValueError("it has no rows")
    numbers = np.concatenate(labels) if labels else np.zeros(len(texts))
    return Texts(np.array(texts, dtype=object), numbers.astype(np.int64), owners)


def _texts(rows: RowNumbers, cells: Cells, column: str, problems: Problems) -> list[str]:
    wrong = np.array([not isinstance(cell, str) or is_empty(cell) for cell in cells], dtype=bool)
    if wrong.any():
        cell = cells[int(wrong.argmax())]
        reason = "the cell is empty" if is_empty(cell) else f"{cell!r} is no text"
        rows.add_to(problems, DataProblem.VALUES, "text", column, wrong, reason)
    return list(map(str, cells))
