"""Data with a client column: pandas DataFrames, and Hugging Face datasets with a partitioner, as clients' splits."""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedappeal.api.client_data import check_clients, single
from fedappeal.settings.config import ConfigError, TaskSettings
from fedappeal.system.packages import require
from fedappeal.tasks.examples import ClientData, Split, Structure
from fedappeal.tasks.partitions.assign import split


@dataclass(frozen=True)
class Columns:
    """Which columns are what.

    Attributes:
        client: names a row's client; empty: a partitioner says.
        label: the label, or several.
        features: the inputs; empty: all other columns.
        partitioner: of flwr-datasets; None: by ``client``.
    """

    client: str = ""
    label: str | Sequence[str] = ""
    features: Sequence[str] = ()
    partitioner: Any = None

    @property
    def labels(self) -> list[str]:
        """The columns of the label."""
        return [self.label] if isinstance(self.label, str) else list(self.label)

    def inputs(self, columns: Sequence[str]) -> list[str]:
        """Return the input columns, checked against those that there are.

        Raises:
            ConfigError: a column that is not there, or no label.
        """
        if not all(self.labels) or not self.labels:
            raise ConfigError(f"label is missing: the column to predict, one of {', '.join(map(str, columns))}")
        parts = {"client": [self.client] if self.client else [], "label": self.labels, "features": [*self.features]}
        for setting, names in parts.items():
            for name in names:
                if name not in columns:
                    raise ConfigError(f"{setting} = {name!r} is not a column: {', '.join(map(str, columns))}")
        inputs = list(self.features) or [c for c in columns if c not in (self.client, *self.labels)]
        if not inputs:
            raise ConfigError("features is missing: no column is left as an input")
        return inputs


NO_COLUMNS = Columns()


@dataclass(frozen=True)
class Rows:
    """All rows of a table, by client.

    Attributes:
        clients: inputs and labels of each client.
        names: what the table calls the clients.
        class_names: what the labels are called; empty where they have no names.
        feature_names: the columns of numbers that are the inputs, in their order; empty: the inputs are others.
    """

    clients: Sequence[Split]
    names: Sequence[str]
    class_names: tuple[str, ...] = ()
    feature_names: tuple[str, ...] = ()

    def shared_out(self, settings: TaskSettings) -> list[ClientData]:
        """Return each client's rows, split at random into train and test by ``train-share`` and the data seed."""
        made = []
        for k, rows in enumerate(self.clients):
            train, test = split(settings, k, np.arange(len(rows)))
            made.append(ClientData(rows.take(torch.from_numpy(train)), rows.take(torch.from_numpy(test))))
        check_clients(made)
        return made


def rows_of_frame(frame: Any, columns: Columns) -> Rows:
    """Return the rows of a pandas DataFrame by client.

    Raises:
        ConfigError: one line: a missing column, texts or missing values in an input, a client with a single row.
    """
    if not columns.client:
        raise ConfigError(f"client is missing: the column that names a row's client, one of {_listed(frame)}")
    inputs = columns.inputs([*frame.columns])
    for name in (*inputs, *columns.labels, columns.client):
        if missing := int(frame[name].isna().sum()):
            raise ConfigError(f"column {name!r} has {missing} missing values: fill them in, or drop these rows")
    x = torch.from_numpy(np.stack([_numbers(frame, name) for name in inputs], axis=1))
    y, class_names = _labels(frame, columns.labels)
    by_client = frame.groupby(frame[columns.client].astype(object)).indices  # a category has an order of its own
    clients = [Split(x, y).take(torch.from_numpy(rows)) for rows in by_client.values()]
    names = [str(client) for client in by_client]
    _check_rows(clients, names)
    return Rows(clients, names, class_names, tuple(map(str, inputs)))


def rows_of_dataset(dataset: Any, columns: Columns) -> Rows:
    """Return the rows of a Hugging Face dataset by client, as a partitioner of flwr-datasets deals them out.

    Raises:
        ConfigError: one line: a missing column, rows of unequal length, a client with a single row.
    """
    partitioner = _assigned(dataset, columns)
    inputs = columns.inputs(dataset.column_names)
    clients, names = [], []
    try:
        for k in range(partitioner.num_partitions):
            part = partitioner.load_partition(k).with_format("torch", columns=[*inputs, *columns.labels])[:]
            clients.append(
                Split(_inputs(part, inputs, dataset.features), _joined([_tensor(part, n) for n in columns.labels]))
            )
            names.append(str(k))
    except ConfigError:
        raise
    except Exception as error:  # a partitioner checks its settings where the first partition is asked for
        raise ConfigError(f"partitioner is not allowed: {' '.join(str(error).split())}") from None
    _check_rows(clients, names)
    label = dataset.features[columns.labels[0]]
    return Rows(clients, names, tuple(getattr(label, "names", None) or ()))


def _assigned(dataset: Any, columns: Columns) -> Any:
    """Return a copy of the partitioner that deals out a dataset."""
    partitioner = columns.partitioner
    if partitioner is None:
        if not columns.client:
            raise ConfigError(
                "partitioner is missing: one of flwr-datasets, or client: the column that names a client"
            )
        columns.inputs(dataset.column_names)
        require("data of this kind needs the package flwr-datasets", "data", "flwr_datasets")
        from flwr_datasets.partitioner import NaturalIdPartitioner

        partitioner = NaturalIdPartitioner(partition_by=columns.client)
    if not hasattr(partitioner, "load_partition"):
        raise ConfigError(f"partitioner = {partitioner!r} is not allowed: one of flwr_datasets.partitioner is")
    if not partitioner.is_dataset_assigned():
        partitioner = copy.deepcopy(partitioner)  # the user's may deal out another data set later
        partitioner.dataset = dataset
    return partitioner


def _inputs(part: Mapping[str, Any], names: Sequence[str], features: Mapping[str, Any]) -> Structure:
    tensors = {name: _tensor(part, name) for name in names}
    for name in names:
        if type(features[name]).__name__ == "Image":
            tensors[name] = tensors[name].float() / 255
    if len(names) == 1:
        return tensors[names[0]]
    return _joined([t.float() for t in tensors.values()]) if all(t.ndim == 1 for t in tensors.values()) else tensors


def _tensor(part: Mapping[str, Any], name: str) -> Tensor:
    if not isinstance(part[name], Tensor):
        raise ConfigError(
            f"column {name!r} is not allowed: its rows are texts or of unequal length; encode and pad them, or leave "
            "it out with features=[...]"
        )
    made = single(part[name])
    assert isinstance(made, Tensor)
    return made


def _joined(columns: Sequence[Tensor]) -> Tensor:
    return columns[0] if len(columns) == 1 else torch.stack(list(columns), dim=1)


def _numbers(frame: Any, name: str) -> Any:
    if frame[name].dtype.kind not in "biuf":
        raise ConfigError(
            f"column {name!r} is not allowed as an input: it holds {frame[name].dtype}; encode it as numbers "
            "(pandas.get_dummies), or leave it out with features=[...]"
        )
    return frame[name].to_numpy(dtype=np.float32)


def _labels(frame: Any, names: Sequence[str]) -> tuple[Tensor, tuple[str, ...]]:
    """Return the labels: float32 or int64; texts become classes in their order."""
    kinds = {frame[name].dtype.kind for name in names}
    if len(names) == 1 and not kinds <= set("biuf"):
        sorted_classes = frame[names[0]].astype(object).astype("category").cat
        return torch.tensor(sorted_classes.codes.to_numpy(np.int64)), tuple(map(str, sorted_classes.categories))
    if not kinds <= set("biuf"):
        raise ConfigError(f"label = {list(names)} is not allowed: columns of numbers are")
    kind = np.float32 if "f" in kinds else np.int64
    return _joined([torch.tensor(frame[name].to_numpy(dtype=kind)) for name in names]), ()


def _check_rows(clients: Sequence[Split], names: Sequence[str]) -> None:
    for rows, name in zip(clients, names, strict=True):
        if len(rows) < 2:
            raise ConfigError(
                f"data is not allowed: client {name!r} has {len(rows)} rows; at least 2, to train and to test"
            )


def _listed(frame: Any) -> str:
    return ", ".join(map(str, frame.columns))
