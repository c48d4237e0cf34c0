"""The checkpoints of a run's folder: the newest, and the two before it.

A checkpoint is one file, replaced at once: the round, the model and the strategy's state.
``checkpoint.safetensors`` is the newest; ``checkpoint-ROUND.safetensors`` are those before it. The newest gets its
second name before it is replaced, so that a kill between any two steps leaves it, and one with each round's memory.

The initial model w_0, from which late clients still warm up, stands beside them. It is written once, under a name
with its hash, and once more, because no earlier file stands in for it where it is damaged:
``initial-HASH.safetensors``, ``initial-HASH.copy.safetensors``.
"""

import os
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from flwr.app import ArrayRecord, RecordDict

from fedappeal.protocol.packing import content_hash
from fedappeal.record.files import CHECKPOINT
from fedappeal.record.folder import Usable, checkpoint_round, without_memory
from fedappeal.settings.config import ConfigError, Scalar
from fedappeal.system.files import read_safetensors, read_values, set_aside, write_safetensors
from server.records import flattened, restored
from strategies.rounds.sums.weighted_sum import finite

KEPT = 3
_EARLIER = re.compile(r"checkpoint-([0-9]{1,18})\.safetensors")
_STATE = "state/"
_INITIAL = "initial"
"""Name of the scalar that holds w_0's hash; in a checkpoint of an earlier version, of w_0's record."""
_INITIAL_FILE = re.compile(rf"{_INITIAL}-([0-9a-f]{{16}})(\.copy)?\.safetensors")


@dataclass(frozen=True)
class Checkpoint:
    """Where a run stands.

    Attributes:
        server_round: the last finished round; 0: none.
        initial: w_0, from which late clients still warm up.
        arrays: the global model after that round.
        state: what the strategy carries.
        initial_hash: of w_0; empty: to be worked out.
    """

    server_round: int
    initial: ArrayRecord
    arrays: ArrayRecord
    state: RecordDict
    initial_hash: str = ""

    def write(self, path: Path, durable: bool = True) -> None:
        """Write the checkpoint, atomically, and w_0 before it where that is not there.

        Args:
            path: the file.
            durable: as in `write_safetensors`.
        """
        digest = self.initial_hash or content_hash(self.initial)
        for file in initial_files(path.parent, digest):
            if not file.exists():
                arrays, records = flattened({_INITIAL: self.initial})
                write_safetensors(file, arrays, {"records": records}, durable)
        state = {f"{_STATE}{name}": record for name, record in self.state.items()}
        arrays, records = flattened({"model": self.arrays, **state})
        values: dict[str, Scalar] = {"round": self.server_round, _INITIAL: digest, "records": records}
        write_safetensors(path, arrays, values, durable)

    @classmethod
    def read(cls, path: Path) -> "Checkpoint":
        """Read a checkpoint; one of an earlier version holds w_0 itself.

        Raises:
            ConfigError: if the file, or that of w_0, is not there or cannot be read.
        """
        arrays, values = read_safetensors(path)
        server_round = checkpoint_round(path, values)
        beside = {_INITIAL: _initial(path.parent, str(values[_INITIAL]))} if _INITIAL in values else {}
        try:
            records = {**restored(arrays, str(values["records"])), **beside}
            initial, model = records[_INITIAL], records["model"]
            if not (isinstance(initial, ArrayRecord) and isinstance(model, ArrayRecord)):
                raise ValueError("its models are no arrays")
        except (KeyError, ValueError):
            raise ConfigError(
                f"file '{path}' cannot be read: it is damaged, or another version of fedappeal wrote it"
            ) from None
        if not (finite(initial) and finite(model)):
            raise ConfigError(f"file '{path}' cannot be used: its model has values that are not finite")
        state = {name.removeprefix(_STATE): r for name, r in records.items() if name.startswith(_STATE)}
        return cls(server_round, initial, model, RecordDict(state))


@dataclass(frozen=True)
class Found:
    """The newest checkpoint that can be used.

    Attributes:
        checkpoint: None where the folder holds none.
        file: its file.
        newer: the files of newer ones that cannot be used, each with the reason in one line.
    """

    checkpoint: Checkpoint | None
    file: Path
    newer: dict[Path, str]

    @property
    def server_round(self) -> int:
        """The last round that is in it; 0: none."""
        return self.checkpoint.server_round if self.checkpoint else 0


def checkpoint_files(folder: Path) -> list[Path]:
    """Return a run's checkpoints, the newest first."""
    newest = folder / CHECKPOINT
    earlier = sorted(_earlier(folder).items(), reverse=True)
    return [*([newest] if newest.exists() else []), *(file for _, file in earlier)]


def write_checkpoint(folder: Path, checkpoint: Checkpoint, durable: bool = True) -> list[int]:
    """Write a run's newest checkpoint, and keep the two before it; return the rounds of all three.

    Args:
        folder: the run's.
        checkpoint: where the run stands.
        durable: as in `fedappeal.system.files.write_safetensors`.
    """
    newest = folder / CHECKPOINT
    if newest.exists():
        _keep(newest)
    checkpoint.write(newest, durable)
    earlier = _earlier(folder)
    kept = sorted((number for number in earlier if number < checkpoint.server_round), reverse=True)[: KEPT - 1]
    for number, file in earlier.items():
        if number not in kept:
            file.unlink()
    return [checkpoint.server_round, *kept]


def newest_usable(folder: Path, usable: Usable = without_memory) -> Found:
    """Return a run's newest checkpoint that can be used; nothing is changed.

    Args:
        folder: the run's.
        usable: says of a round whether what belongs to its checkpoint can be read.

    Raises:
        ConfigError: there are checkpoints, and none can be used.
    """
    newer: dict[Path, str] = {}
    for file in checkpoint_files(folder):
        try:
            checkpoint = Checkpoint.read(file)
            usable(checkpoint.server_round)
        except ConfigError as error:
            newer[file] = str(error)
        else:
            return Found(checkpoint, file, newer)
    if newer:
        others = f", nor can the {len(newer) - 1} before it" if len(newer) > 1 else ", and there is none before it"
        raise ConfigError(f"{next(iter(newer.values()))}{others}: the run cannot continue")
    return Found(None, folder / CHECKPOINT, {})


def initial_files(folder: Path, digest: str) -> tuple[Path, Path]:
    """Return the two paths of a run's w_0; ``digest``: its `content_hash`."""
    return folder / f"{_INITIAL}-{digest}.safetensors", folder / f"{_INITIAL}-{digest}.copy.safetensors"


def damaged_initials(folder: Path) -> dict[Path, str]:
    """Return a run's files of w_0 that cannot be read, each with the reason."""
    damaged: dict[Path, str] = {}
    for file in sorted(folder.glob(f"{_INITIAL}-*.safetensors")):
        try:
            _read_initial(file)
        except ConfigError as error:
            damaged[file] = str(error)
    return damaged


def _initial(folder: Path, digest: str) -> ArrayRecord:
    """Return w_0 from the first file that can be read.

    Raises:
        ConfigError: neither can.
    """
    first, second = initial_files(folder, digest)
    try:
        return _read_initial(first)
    except ConfigError:
        with suppress(ConfigError):
            return _read_initial(second)
        raise


def _read_initial(file: Path) -> ArrayRecord:
    arrays, values = read_safetensors(file)
    name = _INITIAL_FILE.fullmatch(file.name)
    with suppress(KeyError, ValueError):
        initial = restored(arrays, str(values["records"]))[_INITIAL]
        if name is not None and isinstance(initial, ArrayRecord) and content_hash(initial) == name[1]:
            return initial
    raise ConfigError(f"file '{file}' cannot be read: it does not hold the model that its name says")


def _earlier(folder: Path) -> dict[int, Path]:
    """Return the checkpoints before the newest by their rounds."""
    matches = ((_EARLIER.fullmatch(file.name), file) for file in folder.glob("checkpoint-*.safetensors"))
    return {int(match[1]): file for match, file in matches if match}


def _keep(newest: Path) -> None:
    """Give the newest checkpoint the name of an earlier one as well."""
    try:
        server_round = checkpoint_round(newest, read_values(newest))
    except ConfigError:  # damaged while the run went on: not lost, and not one of the three
        set_aside(newest)
        return
    earlier = newest.with_name(f"checkpoint-{server_round}.safetensors")
    with suppress(FileNotFoundError):
        earlier.unlink()  # of a kill between the two names
    try:
        os.link(newest, earlier)
    except OSError:  # a file system without second names
        os.replace(newest, earlier)
