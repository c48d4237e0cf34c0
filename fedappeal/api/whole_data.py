"""One data set that names no clients: a partition deals it out."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from fedappeal.api.client_data import split_of
from fedappeal.api.tables import TableColumns, TableForm, class_names_in, read_dataset, scaled_clients
from fedappeal.data.frames import HuggingFace
from fedappeal.data.scaling import ByClient
from fedappeal.settings.config import ConfigError, TaskSettings
from fedappeal.tasks.examples import ClientData, Split, map_parts, only_tensor
from fedappeal.tasks.partitions.assign import assign, partition_of, split_rows

OF_PARTITION = frozenset({"partition", "dirichlet_alpha", "shards_per_client", "clusters", "cluster_alpha"})
"""Settings of a task that go with such data, besides ``min_examples``."""


@dataclass(frozen=True)
class WholeData:
    """A data set before its partition.

    Attributes:
        examples: all of them.
        tests: number of the last examples that are to test with; 0: each client splits its own.
        form: what the columns of its table are.
    """

    examples: Split
    tests: int = 0
    form: TableForm = field(default_factory=TableForm)

    def shared_out(self, settings: TaskSettings) -> tuple[list[ClientData], ByClient | None]:
        """Return each client's examples by partition and data seed, and their scaling.

        Raises:
            ConfigError: another partition than ``iid`` for labels that are no classes, or as `assign` and
                `scaled_clients`.
        """
        y = only_tensor(self.examples.y)
        classes = y is not None and y.ndim == 1 and not y.is_floating_point()
        if not classes and partition_of(settings) != "iid":
            raise ConfigError(f"partition = '{settings.partition}' is not allowed: labels are no classes (iid)")
        labels = y.numpy() if classes and y is not None else np.zeros(len(self.examples), np.int64)
        trained = len(self.examples) - self.tests
        clients = []
        for k, rows in enumerate(assign(settings, labels, 1 + int(labels.max()))):
            parts = (rows[rows < trained], rows[rows >= trained]) if self.tests else split_rows(settings, k, rows)
            clients.append(ClientData(*(self.examples.take(torch.from_numpy(part)) for part in parts)))
        return scaled_clients(clients, settings, self.form)


def whole_of_torch(dataset: Any) -> WholeData:
    """Return a torch Dataset or a pair (x, y) as one data set.

    Errors as `split_of`.
    """
    inner = dataset
    while isinstance(inner, Dataset) and not hasattr(inner, "classes") and hasattr(inner, "dataset"):
        inner = inner.dataset
    names = getattr(inner, "classes", ())
    form = TableForm(tuple(names if isinstance(names, list) else ()))
    return WholeData(split_of(dataset, "the data set"), form=form)


def whole_of_datasets(data: Any, columns: TableColumns) -> WholeData:
    """Return a ``datasets.Dataset``, or a DatasetDict of ``train`` and ``test``, as one data set.

    Raises:
        ConfigError: other splits, or as `read_dataset`.
    """
    parts = dict(data) if isinstance(data, Mapping) else {"train": data}
    if not parts.keys() <= {"train", "test"} or "train" not in parts:
        raise ConfigError(
            f"data is not allowed: a DatasetDict of {', '.join(parts)}; the splits train and test are dealt out "
            "(datasets.DatasetDict names them)"
        )
    first = HuggingFace(parts["train"])
    columns = replace(columns, features=columns.inputs(first.names), categories=first.categories)
    class_names = class_names_in(parts.values(), columns)
    reads = [read_dataset(part, columns, class_names) for part in parts.values()]
    try:
        x, y = (map_parts(lambda t: torch.cat(list(t)), [getattr(r, side) for r in reads]) for side in ("x", "y"))
    except (RuntimeError, ValueError) as error:
        raise ConfigError(f"data is not allowed: its splits differ in form ({error})") from None
    return WholeData(Split(x, y), len(parts.get("test", ())), reads[0].form)
