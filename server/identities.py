"""The file in which a federation keeps whose each client-id is.

Of a local run it lies in the run's folder, else beside the runs, so that all runs of a SuperLink know the same. It is
its owner's alone, and replaced as a whole under a lock.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator

from fedappeal.protocol.foreign_text import one_line, parse_json
from fedappeal.protocol.keys import CLIENT_IDS, is_client_id
from fedappeal.record.folder import is_local
from fedappeal.settings.config import ConfigError, Settings
from fedappeal.system.files import replace_file
from fedappeal.system.locks import InUse, only_process
from fedappeal.system.plain_files import read_bytes
from strategies.rounds.exchange.ownership import Owners

FILE = "client-ids.json"
_LOCK = ".client-ids.lock"
_PRIVATE = 0o600
_PATIENCE = 10.0
"""Seconds to wait for another process that has the file."""
_RUNS = 100
"""Runs whose passing keys are kept; the oldest are dropped."""


def _check_ids(owners: dict[str, str]) -> dict[str, str]:
    if not all(map(is_client_id, owners)):
        raise ValueError(f"client-ids are {CLIENT_IDS}")
    return owners


Owned = Annotated[dict[str, str], AfterValidator(_check_ids)]
"""The owner of each client-id, as `Owners` has it."""


class Book(Settings):
    """The content of the file of identities.

    Attributes:
        clients: the owners in all runs.
        runs: by run-key, the owners in that run alone.
    """

    format: Literal[1]
    clients: Owned
    runs: dict[str, Owned]


def identities_of(run: Path, run_key: str) -> "IdentityFile":
    """Return the file of a federation's owners of client-ids."""
    return IdentityFile(run if is_local(run) else run.parent, run_key)


class IdentityFile:
    """The owners of client-ids in a folder, for one run.

    Args:
        folder: where the file lies.
        run_key: of the run; empty: of none.
    """

    def __init__(self, folder: Path, run_key: str = "") -> None:
        self._folder = folder
        self._run_key = run_key
        self.path = folder / FILE

    @contextmanager
    def open(self) -> Iterator[Owners]:
        """Read the owners and hold their lock; changes are written at the end.

        Raises:
            ConfigError: the file cannot be read or written.
        """
        with self._alone():
            book = self.read()
            owners = Owners(book.clients, book.runs.get(self._run_key, {}))
            yield owners
            if owners.changed:
                self._write(owners.lasting, self._with_passing(book.runs, owners.passing))

    def release(self, client_id: str, to: str) -> None:
        """Release an id to another key, in all runs.

        Arguments as of `Owners.release`, errors as of `open`.
        """
        with self._alone():
            book = self.read()
            owners = Owners(book.clients)
            owners.release(client_id, to)
            runs = {run: {i: key for i, key in ids.items() if i != client_id} for run, ids in book.runs.items()}
            self._write(owners.lasting, runs)

    def read(self) -> Book:
        """Return the file's content; empty without a file.

        Raises:
            ConfigError: it cannot be read.
        """
        try:
            if not self.path.exists():
                return Book(format=1, clients={}, runs={})
            content = parse_json(read_bytes(self.path))
            return Book.parse(content if isinstance(content, dict) else {})
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"file '{self.path}' cannot be read: {one_line(error)} (it says whose each client-id is: "
                f"put back a copy; without the file each id belongs to the key that uses it next)"
            ) from None

    def _with_passing(self, runs: dict[str, dict[str, str]], passing: dict[str, str]) -> dict[str, dict[str, str]]:
        other_runs = {run: ids for run, ids in runs.items() if run != self._run_key}
        latest = dict(list(other_runs.items())[-(_RUNS - 1) :])
        return latest | ({self._run_key: passing} if passing else {})

    def _write(self, clients: dict[str, str], runs: dict[str, dict[str, str]]) -> None:
        book = Book(format=1, clients=clients, runs=runs)
        try:
            replace_file(self.path, (book.model_dump_json(indent=1) + "\n").encode(), mode=_PRIVATE)
        except OSError as error:
            raise ConfigError(
                f"file '{self.path}' cannot be written: {error.strerror} (it says whose each client-id is)"
            ) from None

    @contextmanager
    def _alone(self) -> Iterator[None]:
        try:
            with only_process(self._folder, _LOCK, _PATIENCE):
                yield
        except InUse as error:
            raise ConfigError(f"file '{self.path}' is in use by process {error.process}") from None
