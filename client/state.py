"""What a client remembers: small named records, durable on disk or in the memory of a simulator.

A record is a few scalars and, where needed, some named arrays. On disk each record is one safetensors file,
replaced atomically, so a client killed at any moment finds either the old record or the new one.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from numpy.typing import NDArray

from fedappeal.files import read_safetensors, read_values, write_safetensors
from fedappeal.protocol.config import ConfigError, Scalar
from fedappeal.protocol.packing import view


@dataclass(frozen=True)
class Record:
    """One remembered thing: scalars by name, and arrays by name."""

    values: Mapping[str, Scalar]
    arrays: Mapping[str, NDArray[np.generic]] = field(default_factory=dict)


class Store(Protocol):
    """Where a client keeps its records.

    Attributes:
        durable: whether records outlive the process.
    """

    durable: bool

    def read(self, name: str) -> Record | None:
        """Return the record of that name, or None."""

    def write(self, name: str, record: Record) -> None:
        """Replace the record of that name, all or nothing."""


class DiskStore:
    """Records as files ``NAME.safetensors`` in one folder."""

    durable = True

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"state-dir = '{folder}' is not allowed: {error.strerror}") from None

    def path(self, name: str) -> Path:
        """Return the file of the record of that name."""
        return self.folder / f"{name}.safetensors"

    def names(self) -> list[str]:
        """Return the names of all records, sorted."""
        return sorted(p.stem for p in self.folder.glob("*.safetensors"))

    def read(self, name: str) -> Record | None:
        """Return the record of that name, or None.

        Raises:
            ConfigError: if the file is not a record (another program wrote it, or the disk failed).
        """
        path = self.path(name)
        if not path.exists():
            return None
        arrays, values = read_safetensors(path)
        return Record(values, arrays)

    def values(self, name: str) -> dict[str, Scalar] | None:
        """Return a record's scalars without reading its arrays, or None; errors as in `read`."""
        return read_values(self.path(name)) if self.path(name).exists() else None

    def written(self, name: str) -> float:
        """Return when the record of that name was written, in seconds since the epoch."""
        return self.path(name).stat().st_mtime

    def write(self, name: str, record: Record) -> None:
        """Replace the record of that name atomically, and wait until it is on the disk."""
        write_safetensors(self.path(name), record.arrays, record.values)

    def delete(self, name: str) -> None:
        """Forget the record of that name."""
        self.path(name).unlink(missing_ok=True)


class ContextStore:
    """Records in a Flower context's state: the simulators' memory, one context per virtual client."""

    durable = False

    def __init__(self, state: RecordDict) -> None:
        self._state = state
        self._decoded: dict[str, tuple[object, object, Record]] = {}

    def holds(self, state: RecordDict) -> bool:
        """Whether this is the store of that state."""
        return self._state is state

    def read(self, name: str) -> Record | None:
        """Return the record of that name, or None."""
        # Not by `config_records`, which copies all that there is.
        record, arrays = self._state.get(name), self._state.get(f"{name}.arrays")
        if not isinstance(record, ConfigRecord) or not isinstance(arrays, ArrayRecord):
            return None
        if (known := self._decoded.get(name)) is None or known[0] is not record or known[1] is not arrays:
            values = {k: v for k, v in record.items() if not isinstance(v, list | bytes)}
            known = record, arrays, Record(values, {key: view(array) for key, array in arrays.items()})
            self._decoded[name] = known
        return known[2]

    def write(self, name: str, record: Record) -> None:
        """Replace the record of that name."""
        self._state[name] = ConfigRecord(dict(record.values))
        self._state[f"{name}.arrays"] = ArrayRecord(
            {k: Array(np.asarray(a, order="C")) for k, a in record.arrays.items()}
        )
