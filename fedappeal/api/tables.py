"""Data with a client column: pandas DataFrames, and Hugging Face datasets with a partitioner, as clients' splits."""

import copy
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedappeal.api.client_data import check_clients, single
from fedappeal.api.silence import Notice
from fedappeal.data.cells import Cells, Classes, client_of, to_list
from fedappeal.data.columns import Unfit, names_of, plain
from fedappeal.data.frames import Frame, HuggingFace, is_one_number
from fedappeal.data.pixels import Noticed, opaque, pixels_of
from fedappeal.data.read import Features, add_empty
from fedappeal.data.scaling import ByClient, Scaling
from fedappeal.data.table import Problems, Table
from fedappeal.protocol.foreign_text import one_line
from fedappeal.protocol.keys import DataProblem
from fedappeal.settings.config import ConfigError, TaskSettings
from fedappeal.tasks.examples import ClientData, Split, Structure
from fedappeal.tasks.partitions.assign import split_rows
from fedappeal.tasks.table_scale import STANDARD, standardised_data


@dataclass(frozen=True)
class TableColumns:
    """The roles of a table's columns: inputs, label, client.

    Attributes:
        client: names a row's client; empty: a partitioner says.
        label: the label, or several; a program may give a name alone.
        features: the inputs; empty: all other columns.
        partitioner: of flwr-datasets; None: by ``client``.
        categories: of inputs that are no numbers: their values; None: as the table says.
    """

    client: str = ""
    label: Sequence[str] = ()
    features: Sequence[str] = ()
    partitioner: Any = None
    categories: Mapping[str, Sequence[str]] | None = None

    def __post_init__(self) -> None:
        named = {"label": names_of(self.label), "features": names_of(self.features)}
        self.__dict__.update(client=plain(self.client), **named)

    def inputs(self, columns: Sequence[str]) -> list[str]:
        """Return the input columns, checked against the table's.

        Raises:
            ConfigError: a column that is not there, or no label.
        """
        if not self.label:
            raise ConfigError(f"label is missing: the column to predict, one of {', '.join(columns)}")
        client = [self.client] if self.client else []
        for setting, names in {"client": client, "label": self.label, "features": self.features}.items():
            if missing := [name for name in names if name not in columns]:
                raise ConfigError(f"{setting} = {missing[0]!r} is not a column: {', '.join(columns)}")
        inputs = list(self.features) or [name for name in columns if name not in (*client, *self.label)]
        if not inputs:
            raise ConfigError("features is missing: no column is left as an input")
        return inputs


NO_COLUMNS = TableColumns()
_REMEDY = (
    "fill missing values in or drop these rows; make texts categories (table[column].astype('category')), or leave "
    "them out (features)"
)


@dataclass(frozen=True)
class TableForm:
    """The columns of a table: features, classes and categories.

    Attributes:
        class_names: what the labels are called; empty where they have no names.
        feature_names: the columns that are the inputs, in their order; empty: not all of them are numbers or
            categories.
        categories: of those that are no numbers: their values.
        client_column: names a row's client; empty: none does.
    """

    class_names: tuple[str, ...] = ()
    feature_names: tuple[str, ...] = ()
    categories: Mapping[str, Sequence[str]] = field(default_factory=dict)
    client_column: str = ""


@dataclass(frozen=True)
class RowsByClient:
    """All rows of a table, by client.

    Attributes:
        clients: inputs and labels of each client; columns of numbers are float64.
        names: what the table calls the clients.
        form: what its columns are.
    """

    clients: Sequence[Split]
    names: Sequence[str]
    form: TableForm

    def shared_out(self, settings: TaskSettings) -> tuple[list[ClientData], ByClient | None]:
        """Return each client's rows split by ``train-share``, and their scaling.

        They are split at random, by the data seed.

        Raises:
            ConfigError: as `scaled_clients`.
        """
        clients = []
        for k, rows in enumerate(self.clients):
            parts = split_rows(settings, k, np.arange(len(rows)))
            clients.append(ClientData(*(rows.take(torch.from_numpy(part)) for part in parts)))
        names = dict(zip(self.names, range(len(clients)), strict=True))
        return scaled_clients(clients, settings, self.form, names)


def scaled_clients(
    clients: Sequence[ClientData],
    settings: TaskSettings,
    form: TableForm,
    places: Mapping[str, int] = MappingProxyType({}),
) -> tuple[list[ClientData], ByClient | None]:
    """Return the clients' scaled data, and their scaling; None if they are not scaled.

    Columns of numbers are standardised unless ``scale = none``: each client's by its training examples.

    Args:
        clients: data as they were read.
        settings: of the task.
        form: what the columns of their table are.
        places: where a client of this name stands in ``clients``.

    Raises:
        ConfigError: ``scale = standard`` for other inputs, or clients that do not fit each other.
    """
    if settings.scale == STANDARD and not form.feature_names:
        raise ConfigError("scale = 'standard' is not allowed: the inputs are no columns of numbers (auto, none)")
    if not form.feature_names or settings.scale == "none":
        made = [ClientData(*(Split(single(part.x), part.y) for part in data.splits)) for data in clients]
        check_clients(made)
        return made, None
    check_clients(clients)
    made = [standardised_data(data) for data in clients]
    check_clients(made)
    scalings = [data.scaling for data in made]
    of_client = {name: scaling for name, place in places.items() if (scaling := scalings[place])}
    pooled = Scaling.of(torch.cat([cast(Tensor, data.train.x) for data in clients]).numpy())
    return made, ByClient(form.client_column, of_client, pooled)


def rows_of_frame(frame: Any, columns: TableColumns) -> RowsByClient:
    """Return the rows of a pandas DataFrame by client.

    Raises:
        ConfigError: one line: a missing column, all texts and missing values in inputs, a client with a single row.
    """
    table = Frame(frame)
    if not columns.client:
        names = ", ".join(table.names)
        raise ConfigError(f"client is missing: the column that names a row's client, one of {names}")
    return _by_client(_read(table, columns.inputs(table.names), columns))


def rows_of_dataset(dataset: Any, columns: TableColumns) -> RowsByClient:
    """Return a Hugging Face dataset's rows by client, from a column or partitioner.

    Raises:
        ConfigError: one line: a missing column, rows of unequal length, a client with a single row.
    """
    columns.inputs(HuggingFace(dataset).names)
    if columns.partitioner is None:
        if not columns.client:
            raise ConfigError(
                "partitioner is missing: one of flwr-datasets, or client: the column that names a client"
            )
        return _by_client(read_dataset(dataset, columns))
    partitioner = _partitioner_of(dataset, columns.partitioner)
    class_names = class_names_in([dataset], columns)
    try:
        parts = (partitioner.load_partition(k) for k in range(partitioner.num_partitions))
        reads = [read_dataset(part, columns, class_names) for part in parts]
    except ConfigError:
        raise
    except Exception as error:  # a partitioner checks its settings where the first partition is asked for
        raise ConfigError(f"partitioner is not allowed: {' '.join(str(error).split())}") from None
    clients = [Split(read.x, read.y) for read in reads]
    names = [str(k) for k in range(len(clients))]
    _check_rows(clients, names)
    return RowsByClient(clients, names, reads[0].form)


def class_names_in(datasets: Iterable[Any], columns: TableColumns) -> tuple[str, ...]:
    """Return the class names of several Hugging Face datasets together; empty without names.

    Raises:
        ConfigError: one line: labels that are missing, or of other types in one of them.
    """
    from datasets import concatenate_datasets

    labels = [*columns.label]
    try:
        together = concatenate_datasets([HuggingFace(dataset).dataset.select_columns(labels) for dataset in datasets])
    except ValueError as error:
        raise ConfigError(f"label = {labels} is not allowed: {one_line(error)}") from None
    return _read(HuggingFace(together), (), TableColumns(label=labels)).form.class_names


@dataclass(frozen=True)
class TableRows:
    """All rows of a table.

    Attributes:
        x: inputs.
        y: labels.
        owners: whose each row is; empty: no column says.
        form: what its columns are.
    """

    x: Structure
    y: Tensor
    owners: Sequence[Any]
    form: TableForm


def read_dataset(dataset: Any, columns: TableColumns, class_names: tuple[str, ...] = ()) -> TableRows:
    """Return the rows of a Hugging Face dataset.

    Args:
        dataset: the dataset.
        columns: which are its inputs, its labels, and its clients.
        class_names: what the classes are called; empty: as the dataset says.

    Raises:
        ConfigError: all that is wrong with it.
    """
    table = HuggingFace(dataset)
    inputs = columns.inputs(table.names)
    if all(is_one_number(table.dataset.features[name]) for name in inputs):
        return _read(table, inputs, columns, class_names)
    return replace(_read(table, (), columns, class_names), x=_inputs(table.dataset, inputs))


def _read(table: Table, inputs: Sequence[str], columns: TableColumns, class_names: tuple[str, ...] = ()) -> TableRows:
    """Read a table's numbers, labels and clients.

    Args:
        table: the table.
        inputs: its columns of numbers and categories.
        columns: which are its labels, and its clients.
        class_names: what the classes are called; empty: as the table says.

    Raises:
        ConfigError: all that is wrong with it.
    """
    labels, problems = columns.label, Problems()
    declared = table.categories if columns.categories is None else columns.categories
    categories = {name: declared[name] for name in inputs if name in declared}
    features = Features(table, inputs, categories)
    others = [*labels, *([columns.client] if columns.client else [])]
    x: list[NDArray[np.float64]] = []
    read: list[list[Cells]] = [[] for _ in others]
    try:
        for rows, cells in table.pieces([*inputs, *others], problems):
            x.append(features.read(rows, cells[: len(inputs)], problems)[0])
            for name, column, gathered in zip(others, cells[len(inputs) :], read, strict=True):
                add_empty(rows, column, name, problems)
                gathered.append(column)
        problems.check()
    except Unfit as error:
        remedy = f" ({_REMEDY})" if error.problem is DataProblem.VALUES else ""
        raise ConfigError(f"data is not allowed: {error}{remedy}") from None
    if not sum(map(len, x)):
        raise ConfigError("data is not allowed: it has no rows")
    y, names = _labels([_joined_cells(column) for column in read[: len(labels)]], labels, table, class_names)
    owners = [client_of(cell) for column in read[len(labels) :] for part in column for cell in to_list(part)]
    form = TableForm(names, tuple(inputs), categories, columns.client)
    return TableRows(torch.from_numpy(np.concatenate(x)), y, owners, form)


def _by_client(read: TableRows) -> RowsByClient:
    """Return rows by client, in the order of the clients' names."""
    rows = Split(read.x, read.y)
    owners = sorted({*read.owners}, key=None if _alike(read.owners) else str)
    rows_of: dict[Any, list[int]] = {owner: [] for owner in owners}
    for row, owner in enumerate(read.owners):
        rows_of[owner].append(row)
    clients = [rows.take(torch.tensor(places)) for places in rows_of.values()]
    names = [str(owner) for owner in rows_of]
    if twice := next((name for name, count in Counter(names).items() if count > 1), None):
        raise ConfigError(
            f"data is not allowed: values of two types in column {read.form.client_column} call a client {twice!r} "
            "(astype(str) makes them one)"
        )
    _check_rows(clients, names)
    return RowsByClient(clients, names, read.form)


def _partitioner_of(dataset: Any, partitioner: Any) -> Any:
    """Return a copy of a partitioner that deals out a dataset."""
    if not hasattr(partitioner, "load_partition"):
        raise ConfigError(f"partitioner = {partitioner!r} is not allowed: one of flwr_datasets.partitioner is")
    if not partitioner.is_dataset_assigned():
        partitioner = copy.deepcopy(partitioner)  # the user's may deal out another data set later
        partitioner.dataset = dataset
    return partitioner


def _inputs(part: Any, names: Sequence[str]) -> Structure:
    """Return a dataset's inputs as torch tensors; images in [0, 1].

    For columns that are not all numbers.
    """
    images = {name for name in names if type(part.features[name]).__name__ == "Image"}
    others = [name for name in names if name not in images]
    read = part.with_format("torch", columns=others)[:] if others else {}
    tensors: dict[str, Structure] = {}
    for name in names:
        if name in images:
            tensors[name] = _images(part, name)
        elif isinstance(read[name], Tensor):
            tensors[name] = single(read[name])
        else:
            raise ConfigError(
                f"column {name!r} is not allowed: its rows are texts or of unequal length; encode and pad them, or "
                "leave it out with features=[...]"
            )
    return tensors[names[0]] if len(names) == 1 else tensors


def _images(part: Any, name: str) -> Tensor:
    noticed = Noticed()
    try:
        images = [pixels_of(opaque(image, noticed)) for image in part.with_format(None)[name]]
    except ValueError as error:
        raise ConfigError(f"column {name!r} is not allowed: {error}") from None
    if noticed.transparent:
        warnings.warn(f"column {name!r}: transparent images are laid over white", Notice, stacklevel=2)
    if noticed.frames:
        warnings.warn(f"column {name!r}: of several frames the first one is used", Notice, stacklevel=2)
    if len({image.shape for image in images}) != 1:
        raise ConfigError(f"column {name!r} is not allowed: its images differ in size or channels")
    return torch.from_numpy(np.stack(images))


def _labels(
    columns: Sequence[Cells], names: Sequence[str], table: Table, class_names: tuple[str, ...]
) -> tuple[Tensor, tuple[str, ...]]:
    """Return the labels, float32 or int64, and the names of classes.

    Texts and categories become classes in order.
    """
    numbers = [column for column in columns if isinstance(column, np.ndarray) and column.dtype.kind in "biuf"]
    if len(columns) == 1 and (not numbers or numbers[0].dtype.kind == "b"):
        values = [plain(value) if isinstance(value, str) else value for value in to_list(columns[0])]
        by_text = {str(value): value for value in values}
        ordered = sorted(by_text.values()) if _alike(values) else sorted(by_text)
        class_names = class_names or tuple(map(str, ordered))
        y = Classes(class_names).labels_of(list(map(str, values)))
        return torch.from_numpy(y.astype(np.int64)), class_names
    if len(numbers) < len(columns):
        raise ConfigError(f"label = {list(names)} is not allowed: columns of numbers are")
    kind = np.float32 if any(column.dtype.kind == "f" for column in numbers) else np.int64
    tensors = [torch.from_numpy(column.astype(kind)) for column in numbers]
    return (tensors[0] if len(tensors) == 1 else torch.stack(tensors, dim=1)), tuple(
        table.class_names.get(names[0], ())
    )


def _joined_cells(parts: Sequence[Cells]) -> Cells:
    arrays = [part for part in parts if isinstance(part, np.ndarray)]
    return np.concatenate(arrays) if len(arrays) == len(parts) else [cell for part in parts for cell in to_list(part)]


def _alike(values: Sequence[Any]) -> bool:
    """Whether values can be sorted: all texts, or all numbers."""
    kinds = {str if isinstance(v, str) else float if isinstance(v, int | float) else type(v) for v in values}
    return len(kinds) == 1


def _check_rows(clients: Sequence[Split], names: Sequence[str]) -> None:
    for rows, name in zip(clients, names, strict=True):
        if len(rows) < 2:
            raise ConfigError(
                f"data is not allowed: client {name!r} has {len(rows)} rows; at least 2, to train and to test"
            )
