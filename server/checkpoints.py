"""The checkpoints of a run's folder, the newest and the two before it.

And how a run continues from them.

A checkpoint is one file, replaced at once: the round, the model and the strategy's state.
``checkpoint.safetensors`` is the newest; ``checkpoint-ROUND.safetensors`` are those before it. The newest gets its
second name before it is replaced, so that a kill between any two steps leaves it, and one with each round's memory.

The initial model w_0, from which late clients still warm up, stands beside them. It is written once, under a name
with its hash, and once more, because no earlier file stands in for it where it is damaged:
``initial-HASH.safetensors``, ``initial-HASH.copy.safetensors``.
"""

import json
import os
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from numpy.typing import NDArray

from fedappeal.protocol.foreign_text import parse_json
from fedappeal.protocol.packing import array_record, content_hash, view
from fedappeal.record.folder import RunFolder, Usable, without_memory
from fedappeal.record.lines import CHECKPOINT, OWN_MODELS
from fedappeal.record.reader import Record, checkpoint_round, lost_rounds
from fedappeal.settings.config import ConfigError, RunConfig, Scalar
from fedappeal.system.files import delete_unfinished, read_safetensors, read_values, set_aside, write_safetensors
from strategies.rounds.sums.weighted_sum import finite

FlowerRecord: TypeAlias = ArrayRecord | ConfigRecord | MetricRecord
Arrays: TypeAlias = dict[str, NDArray[np.generic]]


_BYTES = "hex"


def flatten_records(records: Mapping[str, FlowerRecord]) -> tuple[Arrays, str]:
    """Return records' arrays as ``NAME/KEY``, and all else as a text."""
    arrays: Arrays = {}
    described: dict[str, dict[str, object]] = {}
    for name, record in records.items():
        if isinstance(record, ArrayRecord):
            arrays |= {f"{name}/{key}": view(array) for key, array in record.items()}
            described[name] = {"kind": "ArrayRecord", "keys": list(record)}
        else:
            described[name] = {"kind": type(record).__name__, "values": dict(record)}
    return arrays, json.dumps(described, default=lambda value: {_BYTES: value.hex()})


def _value(told: Any) -> Any:
    """Return a value of a ConfigRecord, of which bytes are told in hex."""
    if isinstance(told, list):
        return [_value(one) for one in told]
    return bytes.fromhex(told[_BYTES]) if isinstance(told, dict) else told


def restore_records(arrays: Mapping[str, NDArray[np.generic]], text: str) -> dict[str, FlowerRecord]:
    """Return the records given to `flatten_records`, all in the same order.

    Raises:
        ValueError: it is damaged, or another version wrote it.
    """
    records: dict[str, FlowerRecord] = {}
    try:
        for name, described in parse_json(text).items():
            if described["kind"] == "ArrayRecord":
                inside = {key: np.asarray(arrays[f"{name}/{key}"], order="C") for key in described["keys"]}
                records[name] = array_record(inside)
            elif described["kind"] == "ConfigRecord":
                records[name] = ConfigRecord({key: _value(value) for key, value in described["values"].items()})
            else:
                records[name] = MetricRecord(described["values"])
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"records that cannot be read ({error})") from None
    return records


KEPT = 3
_EARLIER = re.compile(r"checkpoint-([0-9]{1,18})\.safetensors")
_STATE = "state/"
_INITIAL = "initial"
"""Name of the scalar that holds w_0's hash; in a checkpoint of an earlier version, of w_0's record."""
_INITIAL_FILE = re.compile(rf"{_INITIAL}-([0-9a-f]{{16}})(\.copy)?\.safetensors")


@dataclass(frozen=True)
class Checkpoint:
    """A run's state after a round.

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
                arrays, records = flatten_records({_INITIAL: self.initial})
                write_safetensors(file, arrays, {"records": records}, durable)
        state = {f"{_STATE}{name}": record for name, record in self.state.items()}
        arrays, records = flatten_records({"model": self.arrays, **state})
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
            records = {**restore_records(arrays, str(values["records"])), **beside}
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
class UsableCheckpoint:
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
        """The last round that is in it, or 0."""
        return self.checkpoint.server_round if self.checkpoint else 0


def checkpoint_files(folder: Path) -> list[Path]:
    """Return a run's checkpoints, the newest first."""
    newest = folder / CHECKPOINT
    earlier = sorted(_earlier(folder).items(), reverse=True)
    return [*([newest] if newest.exists() else []), *(file for _, file in earlier)]


def write_checkpoint(folder: Path, checkpoint: Checkpoint, durable: bool = True) -> list[int]:
    """Write a run's checkpoint, keeping two older ones; return all three's rounds.

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
    numbers = sorted((number for number in earlier if number < checkpoint.server_round), reverse=True)[: KEPT - 1]
    for number, file in earlier.items():
        if number not in numbers:
            file.unlink()
    return [checkpoint.server_round, *numbers]


def newest_usable(folder: Path, usable: Usable = without_memory) -> UsableCheckpoint:
    """Return a run's newest usable checkpoint, changing nothing.

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
            return UsableCheckpoint(checkpoint, file, newer)
    if newer:
        before_it = f", nor can the {len(newer) - 1} before it" if len(newer) > 1 else ", and there is none before it"
        raise ConfigError(f"{next(iter(newer.values()))}{before_it}: the run cannot continue")
    return UsableCheckpoint(None, folder / CHECKPOINT, {})


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
        initial = restore_records(arrays, str(values["records"]))[_INITIAL]
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


def settings_to_resume(path: Path, rounds: int | None = None, usable: Usable = without_memory) -> RunConfig:
    """Return the settings with which a run continues, changing nothing.

    Args:
        path: its folder.
        rounds: its new total of rounds; None: as it is.
        usable: as in `server.checkpoints.newest_usable`.

    Raises:
        ConfigError: if the folder holds no run, one that goes on, one without a checkpoint that can be used, one that
            a strategy ended, or one that has done all these rounds.
    """
    config = RunConfig.parse_recorded(Record(path).settings)
    RunFolder.check_idle(path)
    RunFolder.open(path)
    ended, done = Record(path).standing.end, newest_usable(path, usable).server_round
    if ended and ended["reason"]:
        raise ConfigError(
            f"'{path}' holds a run that has finished in round {ended['round']}: {ended['reason']}; it cannot continue"
        )
    longer = config if rounds in (None, config.rounds) else config.continued(rounds)
    if rounds is not None and longer.rounds <= done:
        raise ConfigError(f"rounds = {rounds} is not allowed: more than the {done} that the run in '{path}' has done")
    if rounds is None and ended and ended["round"] >= config.rounds:
        raise ConfigError(
            f"'{path}' holds a run that has finished all its {config.rounds} rounds (--rounds N: continue to N)"
        )
    return longer


def mend_files(folder: RunFolder, say: Callable[[str], None], usable: Usable = without_memory) -> UsableCheckpoint:
    """Put a run's damaged files aside, and return the checkpoint after which it continues.

    What a killed process left half-written is deleted. The caller has the folder alone.

    Args:
        folder: the run's.
        say: told one line of each damaged file; the run's events record it too.
        usable: as in `newest_usable`.

    Raises:
        ConfigError: no checkpoint can be used; then nothing is changed.
    """
    newest = newest_usable(folder.path, usable)
    for place in (folder.path, folder.path / OWN_MODELS):
        delete_unfinished(place)
    for line in folder.mend():
        say(line)
    for path, reason in damaged_initials(folder.path).items():
        name = set_aside(path).name
        folder.event("damaged", file=path.name, aside=name, reason=reason)
        say(f"{reason}: the next checkpoint writes it again, and the damaged file is kept as '{name}'")
    for path, reason in newest.newer.items():
        name = set_aside(path).name
        folder.event("damaged", file=path.name, aside=name, reason=reason, round=newest.server_round)
        say(
            f"{reason}: the run continues after round {newest.server_round}, from '{newest.file.name}'; "
            f"the checkpoint that cannot be used is kept as '{name}'"
        )
    if newest.checkpoint is not None and newest.file.name != CHECKPOINT:
        os.replace(newest.file, newest.file.with_name(CHECKPOINT))
    for name, lost in lost_rounds(folder.path, newest.server_round):
        if (name, lost) not in folder.just_said():
            folder.event("damaged", file=name, reason=lost)
            say(f"file '{folder.path / name}' is damaged ({lost}): the run continues without these lines")
    return newest
