"""A table's columns at mean 0 and standard deviation 1, by the training data of one client."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, Self

import numpy as np
from numpy.typing import NDArray

from fedappeal.data.cells import Classes
from fedappeal.data.table import Problems, Table

Numbers = NDArray[np.float64]
POOLED = "pooled"
"""Names all clients' training data, where a choice of data to scale by is asked for."""


class Scaler(Protocol):
    """A scaling of a table's features."""

    def scaled(self, x: Numbers, table: Table | None = None) -> Numbers:
        """Return scaled features ``(n, k)``.

        ``table``: that they were read from, if any.
        """


@dataclass(frozen=True)
class Scaling:
    """Standardisation ``(x - mean) / std`` by each column's mean and deviation."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    @classmethod
    def of(cls, x: Numbers) -> Self:
        """Return the standardisation of these rows ``(n, k)``; constant columns are only centred."""
        constant = x.min(axis=0) == x.max(axis=0)
        mean, std = np.where(constant, x[0], x.mean(axis=0)), np.where(constant, 1.0, x.std(axis=0))
        return cls(tuple(mean.tolist()), tuple(np.where(std > 0, std, 1.0).tolist()))

    def scaled(self, x: Numbers, table: Table | None = None) -> Numbers:
        """Return features standardised by one mean and deviation a column."""
        scaled: Numbers = (x - np.array(self.mean)) / np.array(self.std)
        return scaled


@dataclass(frozen=True)
class ByClient:
    """A scaling of each row by its own client's data.

    Attributes:
        column: names a row's client; empty: none does.
        clients: each client's scaling, by name.
        pooled: by all clients' training data.
    """

    column: str
    clients: Mapping[str, Scaling]
    pooled: Scaling

    def scaled(self, x: Numbers, table: Table | None = None) -> Numbers:
        """Return features standardised by the mean and deviation of each row's client.

        Raises:
            ValueError: a row that names no client of the run.
        """
        names, places = Classes(tuple(self.clients)), np.full(len(x), np.nan)
        if table is not None and self.column and list(table.names).count(self.column) == 1:
            pieces = table.pieces([self.column], Problems())
            places = np.concatenate([names.labels_of(cells) for _, (cells,) in pieces])
        if (unknown := np.isnan(places)).any():
            rows = f"{int(unknown.sum())} row(s), first row {int(unknown.argmax()) + 1}, name no client of the run"
            raise ValueError(
                f"{rows}{f' in column {self.column}' if self.column else ''}, and each client standardised its own: "
                f"scale-from names a table of training data, or '{POOLED}', that of all clients"
            )
        scaled = np.empty_like(x)
        for place, scaling in enumerate(self.clients.values()):
            scaled[places == place] = scaling.scaled(x[places == place])
        return scaled
