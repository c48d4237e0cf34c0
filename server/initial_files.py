"""A run's initial model w_0 beside its checkpoints, none of which holds it: late clients still warm up from it.

It is written once, under a name with its hash, and once more, because no earlier file stands in for it where it is
damaged: ``initial-HASH.safetensors``, ``initial-HASH.copy.safetensors``.
"""

import re
from pathlib import Path

from flwr.app import ArrayRecord

from fedappeal.protocol.packing import content_hash
from fedappeal.settings.config import ConfigError
from fedappeal.system.files import read_safetensors, write_safetensors
from server.records import flattened, restored

_NAME = "initial"
_FILE = re.compile(rf"{_NAME}-([0-9a-f]{{16}})(\.copy)?\.safetensors")


def initial_files(folder: Path, digest: str) -> tuple[Path, Path]:
    """Return the two paths of a run's w_0; ``digest``: its `content_hash`."""
    return folder / f"{_NAME}-{digest}.safetensors", folder / f"{_NAME}-{digest}.copy.safetensors"


def write_initial(folder: Path, initial: ArrayRecord, digest: str, durable: bool = True) -> None:
    """Write w_0 where it is not there; ``durable`` as in `fedappeal.system.files.write_safetensors`."""
    for file in initial_files(folder, digest):
        if not file.exists():
            arrays, records = flattened({_NAME: initial})
            write_safetensors(file, arrays, {"records": records}, durable)


def read_initial(folder: Path, digest: str) -> ArrayRecord:
    """Return w_0 from the first file that can be read.

    Raises:
        ConfigError: neither can.
    """
    first, second = initial_files(folder, digest)
    try:
        return _read(first)
    except ConfigError as error:
        try:
            return _read(second)
        except ConfigError:
            raise error from None


def damaged_initials(folder: Path) -> dict[Path, str]:
    """Return a run's files of w_0 that cannot be read, each with the reason."""
    found: dict[Path, str] = {}
    for file in sorted(folder.glob(f"{_NAME}-*.safetensors")):
        try:
            _read(file)
        except ConfigError as error:
            found[file] = str(error)
    return found


def _read(file: Path) -> ArrayRecord:
    arrays, values = read_safetensors(file)
    name = _FILE.fullmatch(file.name)
    try:
        initial = restored(arrays, str(values["records"]))[_NAME]
        if name is not None and isinstance(initial, ArrayRecord) and content_hash(initial) == name[1]:
            return initial
    except (KeyError, ValueError):
        pass
    raise ConfigError(f"file '{file}' cannot be read: it does not hold the model that its name says")
