"""The checkpoints of a run's folder: the newest, and the two before it.

``checkpoint.safetensors`` is the newest; ``checkpoint-ROUND.safetensors`` are those before it. The newest gets its
second name before it is replaced, so that a kill between any two steps leaves it, and one with each round's memory.
"""

import os
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from fedappeal.record.files import CHECKPOINT
from fedappeal.record.folder import Usable, checkpoint_round, without_memory
from fedappeal.settings.config import ConfigError
from fedappeal.system.files import read_values, set_aside
from server.checkpoint import Checkpoint

KEPT = 3
_EARLIER = re.compile(r"checkpoint-([0-9]{1,18})\.safetensors")


@dataclass(frozen=True)
class Unusable:
    """A file for which a checkpoint cannot be used.

    Attributes:
        file: the checkpoint.
        reason: one line.
    """

    file: Path
    reason: str


@dataclass(frozen=True)
class Found:
    """The newest checkpoint that can be used.

    Attributes:
        checkpoint: None where the folder holds none.
        file: its file.
        newer: those that cannot be used.
    """

    checkpoint: Checkpoint | None
    file: Path
    newer: tuple[Unusable, ...] = ()

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
    newer: list[Unusable] = []
    for file in checkpoint_files(folder):
        try:
            checkpoint = Checkpoint.read(file)
            usable(checkpoint.server_round)
        except ConfigError as error:
            newer.append(Unusable(file, str(error)))
        else:
            return Found(checkpoint, file, tuple(newer))
    if newer:
        others = f", nor can the {len(newer) - 1} before it" if len(newer) > 1 else ", and there is none before it"
        raise ConfigError(f"{newer[0].reason}{others}: the run cannot continue")
    return Found(None, folder / CHECKPOINT)


def take_back(found: Found) -> list[Path]:
    """Put unusable checkpoints aside, and give the usable one the newest's name; return where they are kept."""
    aside = [set_aside(each.file) for each in found.newer]
    if found.checkpoint is not None and found.file.name != CHECKPOINT:
        os.replace(found.file, found.file.with_name(CHECKPOINT))
    return aside


def _earlier(folder: Path) -> dict[int, Path]:
    """Return the checkpoints before the newest by their rounds."""
    found = ((_EARLIER.fullmatch(file.name), file) for file in folder.glob("checkpoint-*.safetensors"))
    return {int(match[1]): file for match, file in found if match}


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
