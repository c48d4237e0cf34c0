"""Simulated clients' own models as files of the run's folder, where side by side they would take too much memory.

A client's record whose arrays all clients could not keep twice within `OWN_MODELS_BYTES` is a file
``own-models/CLIENT-HASH.safetensors``, named by its content. The client's context holds the name alone, and so do the
run's memory and what workers send. The file is read when the client is next asked for the arrays.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cached_property, partial
from pathlib import Path

import numpy as np
from flwr.app import ConfigRecord, Context
from numpy.typing import NDArray

from client.settings import NodeSettings
from client.state.store import ContextStore
from fedappeal.core.local_rule import StoredRecord
from fedappeal.protocol.packing import Arrays, array_record, content_hash
from fedappeal.record.lines import OWN_MODELS
from fedappeal.settings.config import ConfigError
from fedappeal.system.files import Damaged, check, read_safetensors, set_aside, write_safetensors

OWN_MODELS_BYTES = 4 << 30
"""Most bytes in memory of one kind of record, such as own models, that all clients keep twice."""
_KEY = "own-model-file"
"""Key of a record whose arrays are in a file: its name."""
_NAME = re.compile(r"[0-9]{4,18}-[0-9a-f]{16}\.safetensors")


class NotKept(Exception):
    """A client's arrays could not be written or read; the cause says why."""


class FileArrays(Mapping[str, NDArray[np.generic]]):
    """The arrays of a file, which is read when one of them is first needed.

    Attributes:
        path: the file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def __bool__(self) -> bool:
        """True, without a look: only a record with arrays has a file."""
        return True

    def __getitem__(self, name: str) -> NDArray[np.generic]:
        """Return an array."""
        return self._read[name]

    def __iter__(self) -> Iterator[str]:
        """Yield the names."""
        return iter(self._read)

    def __len__(self) -> int:
        """Return the number of arrays."""
        return len(self._read)

    @cached_property
    def _read(self) -> Arrays:
        try:
            arrays, _ = read_safetensors(self.path)
        except ConfigError as error:
            self._set_aside_if_damaged()
            raise NotKept from error
        return {name.partition("/")[2]: arrays[name] for name in sorted(arrays)}

    def _set_aside_if_damaged(self) -> None:
        """Put a damaged file aside, so that a resume begins at a checkpoint that does without it.

        What cannot be read for another reason, such as too little memory, stays.
        """
        with suppress(OSError):
            try:
                check(self.path)
            except Damaged:
                set_aside(self.path)


class FileStore(ContextStore):
    """A simulated client's memory, whose large arrays are files.

    Args:
        run: the run's folder.
        most: bytes; a record whose arrays have more is a file.
        node: the owner's settings.
        context: has the rest.
    """

    def __init__(self, run: Path, most: int, node: NodeSettings, context: Context) -> None:
        super().__init__(context.state)
        self._run, self._most, self._client = run, most, node.partition_id

    def read(self, name: str) -> StoredRecord | None:
        """Return the record of that name, or None."""
        record = super().read(name)
        if record is None or _KEY not in record.values:
            return record
        values = {key: value for key, value in record.values.items() if key != _KEY}
        return StoredRecord(values, FileArrays(file_of(self._run, str(record.values[_KEY]))))

    def write(self, name: str, record: StoredRecord) -> None:
        """Replace the record of that name."""
        arrays = record.arrays
        if not isinstance(arrays, FileArrays):
            if sum(array.nbytes for array in arrays.values()) <= self._most:
                super().write(name, record)
                return
            arrays = FileArrays(self._write(arrays))
        super().write(name, StoredRecord({**record.values, _KEY: arrays.path.name}))

    def _write(self, arrays: Arrays) -> Path:
        """Write arrays; return their file."""
        path = file_of(self._run, f"{self._client:04d}-{content_hash(array_record(arrays))}.safetensors")
        try:
            path.parent.mkdir(exist_ok=True)
            # safetensors has an order of its own, and a sum over arrays depends on theirs.
            numbered = {f"{number:06}/{name}": array for number, (name, array) in enumerate(arrays.items())}
            write_safetensors(path, numbered, {}, durable=False)
        except FileNotFoundError:  # a worker on another machine
            raise NotKept from not_shared(path)
        except OSError as error:
            raise NotKept from error
        return path


def stores_of_run(run: Path, clients: int) -> Callable[[NodeSettings, Context], ContextStore]:
    """Return the maker of a client's memory in a run of this many clients."""
    return partial(FileStore, run.absolute(), OWN_MODELS_BYTES // (2 * clients))


def file_of(run: Path, name: str) -> Path:
    """Return the file of a run that a client's record names.

    Raises:
        ValueError: it names none.
    """
    if not _NAME.fullmatch(name):
        raise ValueError(f"{_KEY} = '{name[:80]}' is not allowed: CLIENT-HASH.safetensors")
    return run / OWN_MODELS / name


def not_shared(path: Path) -> ConfigError:
    """Return the error of a run whose workers do not share its folder."""
    return ConfigError(
        f"file '{path}' is not there: own models beyond what memory has room for need a folder that all workers share"
    )


def names_in(records: Iterable[object]) -> set[str]:
    """Return the names of the files in which clients' records have their arrays."""
    return {str(record[_KEY]) for record in records if isinstance(record, ConfigRecord) and _KEY in record}
