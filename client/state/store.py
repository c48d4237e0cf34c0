"""Stores of small named records: on disk, or in the memory of a simulator.

A record is a few scalars and, where needed, some named arrays. On disk each record is one safetensors file with a
checksum, replaced atomically, so a client killed at any moment finds either the old record or the new one.
"""

import glob
import logging
import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from itertools import chain
from pathlib import Path
from typing import TypeVar

from flwr.app import ArrayRecord, ConfigRecord, RecordDict

from fedappeal.core.local_rule import Store, StoredRecord
from fedappeal.protocol.packing import view
from fedappeal.settings.config import ConfigError, Scalar
from fedappeal.system.files import (
    DAMAGED,
    delete_unfinished,
    read_safetensors,
    read_values,
    set_aside,
    state_of,
    write_safetensors,
)
from fedappeal.system.locks import changing
from fedappeal.system.plain_files import paths_in

PRECIOUS = ("identity", "noise-key", "run-", "departure-")
"""Prefixes of the records that have a copy."""
_COPIES = "copies"
_FOLDER, _FILE = 0o700, 0o600
_EARLIER = ("resting", "name")
"""Files of earlier versions: why a client rests is in its latest event, its key's name in its identity."""

log = logging.getLogger("fedappeal.client")

_NO_ARRAYS = ArrayRecord()

T = TypeVar("T")


class DiskStore:
    """Records as files ``NAME.safetensors`` in one folder, for their owner's eyes alone.

    A damaged record is put aside, and is as if it had never been written: the client makes it again. Those in
    `PRECIOUS` cannot be made again, and have a copy each; where that is damaged too, reading fails.
    """

    durable = True

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            folder.mkdir(mode=_FOLDER, parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"state-dir = '{folder}' is not allowed: {error.strerror}") from None

    def path(self, name: str) -> Path:
        """Return the file of the record of that name."""
        return self.folder / f"{name}.safetensors"

    def names(self) -> list[str]:
        """Return the names of all records, sorted."""
        files = (*self.folder.glob("*.safetensors"), *(self.folder / _COPIES).glob("*.safetensors"))
        return sorted({file.stem for file in files})

    def keys(self, prefix: str) -> list[str]:
        """Return what follows a prefix in the names of all records that have it, sorted."""
        return [name.removeprefix(prefix) for name in self.names() if name.startswith(prefix)]

    def read(self, name: str) -> StoredRecord | None:
        """Return the record of that name, or None.

        A damaged record is put aside, with a warning to its owner.

        Raises:
            ConfigError: a precious record is damaged, and so is its copy.
        """
        path = self.path(name)
        with suppress(ConfigError):
            record = _read_if_there(path, _record)
            if record is not None or not self._copy(name).exists():
                return record
        with changing(self.folder):  # looked at again: another process may have replaced or deleted it meanwhile
            try:
                record = self.look(name)
            except ConfigError as error:
                if is_precious(name):
                    raise
                aside = set_aside(path)
                log.warning("%s: it is kept as '%s', and made again where a run needs it", error, aside.name)
                return None
            if record is not None and not _readable(path):
                if path.exists():
                    log.warning(
                        "'%s' is damaged: its copy takes its place, and it is kept as '%s'", path, set_aside(path)
                    )
                self.write(name, record)
            return record

    def look(self, name: str) -> StoredRecord | None:
        """Return the record of that name, or None, and change nothing.

        Raises:
            ConfigError: it is damaged, and so is its copy.
        """
        return self._first_readable(name, _record)

    def values(self, name: str) -> dict[str, Scalar] | None:
        """Return a record's scalars without reading its arrays, or None; errors as in `look`."""
        return self._first_readable(name, read_values)

    def readable_values(self, name: str) -> dict[str, Scalar]:
        """Return a record's scalars.

        Empty where the record is missing or damaged, which is for its reader to say.
        """
        with suppress(ConfigError):
            return self.values(name) or {}
        return {}

    def written_at(self, name: str) -> float:
        """Return when the record of that name was written, in seconds since the epoch; 0: it is not there."""
        state = state_of(self.path(name)) or state_of(self._copy(name))
        return state.st_mtime if state else 0.0

    def write(self, name: str, record: StoredRecord) -> None:
        """Replace the record of that name atomically, and wait until it is on the disk.

        A precious record has a copy, which may find no room.
        """
        with changing(self.folder):
            write_safetensors(self.path(name), record.arrays, record.values, mode=_FILE)
            if not is_precious(name):
                return
            copy = self._copy(name)
            try:
                copy.parent.mkdir(mode=_FOLDER, exist_ok=True)
                write_safetensors(copy, record.arrays, record.values, mode=_FILE)
            except OSError as error:
                copy.unlink(missing_ok=True)  # an older one would bring back what no longer holds
                log.warning("'%s' has no copy until it is written again: %s", self.path(name), error)

    def delete(self, name: str) -> None:
        """Forget the record of that name, and what was put aside of it."""
        with changing(self.folder):
            self._copy(name).unlink(missing_ok=True)  # first: a copy without its record would bring it back
            for file in (self.path(name), *self.folder.glob(f"{glob.escape(name)}.safetensors.{DAMAGED}*")):
                file.unlink(missing_ok=True)

    def put_aside(self, name: str) -> None:
        """Put the record of that name aside, with its copy forgotten."""
        with changing(self.folder):
            self._copy(name).unlink(missing_ok=True)
            if self.path(name).exists():
                set_aside(self.path(name))

    def damaged_names(self) -> list[str]:
        """Return the names of the records of which something was put aside, sorted."""
        return sorted({file.name.partition(".safetensors.")[0] for file in self.folder.glob(f"*.{DAMAGED}*")})

    def _first_readable(self, name: str, read: Callable[[Path], T]) -> T | None:
        """Return what is read of a record, or else of its copy.

        The copy is read where the record is damaged or lost. None where neither is there.
        """
        copy = self._copy(name)
        try:
            found = _read_if_there(self.path(name), read)
        except ConfigError:
            if not (copy.exists() and _readable(copy)):
                raise
            found = None
        return _read_if_there(copy, read) if found is None else found

    def _copy(self, name: str) -> Path:
        return self.folder / _COPIES / f"{name}.safetensors"


def tidy(folder: Path) -> None:
    """Let only its owner read a state folder, and delete what a killed client left half-written in it.

    That may be as large as a model, and no limit counts it.
    """
    for path in chain((os.path.realpath(folder),), paths_in(folder)):  # what is in a folder, once it is readable
        with suppress(OSError):  # a file system that knows no owners; what another process deletes meanwhile
            if not os.path.islink(path):
                os.chmod(path, _FOLDER if os.path.isdir(path) else _FILE)
    with changing(folder):
        for place in (folder, folder / _COPIES):
            delete_unfinished(place)
        for name in _EARLIER:
            with suppress(OSError):
                (folder / name).unlink(missing_ok=True)


def changing_records(store: Store) -> AbstractContextManager[None]:
    """Hold a store while records are read and written again, as `changing`; one in memory has one thread."""
    return changing(store.folder) if isinstance(store, DiskStore) else nullcontext()


def is_precious(name: str) -> bool:
    """Whether a record cannot be made again.

    Its loss would change who the client is, or what its owner decided.
    """
    return name.startswith(PRECIOUS)


def _record(path: Path) -> StoredRecord:
    arrays, values = read_safetensors(path)
    return StoredRecord(values, arrays)


def _read_if_there(path: Path, read: Callable[[Path], T]) -> T | None:
    """Return what is read of a file; None where it is not there, or another process deletes it meanwhile."""
    try:
        return read(path) if path.exists() else None
    except ConfigError:
        if path.exists():
            raise
        return None


def _readable(path: Path) -> bool:
    try:
        _record(path)
    except ConfigError:
        return False
    return True


class ContextStore:
    """Records in a Flower context's state: the simulators' memory, one context per virtual client."""

    durable = False

    def __init__(self, state: RecordDict) -> None:
        self._state = state
        self._decoded: dict[str, tuple[object, object, StoredRecord]] = {}

    def holds(self, state: RecordDict) -> bool:
        """Whether this is the store of that state."""
        return self._state is state

    def read(self, name: str) -> StoredRecord | None:
        """Return the record of that name, or None."""
        # Not by `config_records`, which copies all that there is.
        record, of_arrays = self._state.get(name), f"{name}.arrays"
        arrays: object = _NO_ARRAYS
        if of_arrays in self._state:  # most have none, and `get` would raise and catch an error for each
            arrays = self._state[of_arrays]
        if not isinstance(record, ConfigRecord) or not isinstance(arrays, ArrayRecord):
            return None
        if (decoded := self._decoded.get(name)) is None or decoded[0] is not record or decoded[1] is not arrays:
            values = {k: v for k, v in record.items() if not isinstance(v, list | bytes)}
            decoded = record, arrays, StoredRecord(values, {key: view(array) for key, array in arrays.items()})
            self._decoded[name] = decoded
        return decoded[2]

    def write(self, name: str, record: StoredRecord) -> None:
        """Replace the record of that name."""
        self._state[name], arrays = record.as_flowers
        if record.arrays:
            self._state[f"{name}.arrays"] = arrays
        else:
            self._state.pop(f"{name}.arrays", None)
            self._decoded[name] = self._state[name], _NO_ARRAYS, record
