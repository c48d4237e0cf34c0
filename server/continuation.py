"""Before a run continues: its settings, and its damaged files put aside, named, or deleted where half-written."""

import os
from collections.abc import Callable
from pathlib import Path

from fedappeal.record.files import CHECKPOINT
from fedappeal.record.folder import RunFolder, Usable, without_memory
from fedappeal.record.reader import Record
from fedappeal.settings.config import ConfigError, RunConfig
from fedappeal.system.files import delete_unfinished, set_aside
from server.checkpoints import Found, damaged_initials, newest_usable


def settings_to_resume(path: Path, rounds: int | None = None, usable: Usable = without_memory) -> RunConfig:
    """Return the settings with which a run continues; nothing is changed.

    Args:
        path: its folder.
        rounds: its new total of rounds; None: as it is.
        usable: as in `server.checkpoints.newest_usable`.

    Raises:
        ConfigError: if the folder holds no run, one without a checkpoint that can be used, one that a strategy ended,
            or one that has done all these rounds.
    """
    config = RunConfig.parse_recorded(Record(path).settings)
    RunFolder.open(path)
    ended, done = Record(path).standing.end, newest_usable(path, usable).server_round
    if ended and ended["reason"]:
        raise ConfigError(
            f"'{path}' holds a run that has finished in round {ended['round']}: {ended['reason']}; it cannot continue"
        )
    if rounds is not None and rounds <= done:
        raise ConfigError(f"rounds = {rounds} is not allowed: more than the {done} that the run in '{path}' has done")
    if rounds is None and ended and ended["round"] >= config.rounds:
        raise ConfigError(
            f"'{path}' holds a run that has finished all its {config.rounds} rounds (--rounds N: continue to N)"
        )
    return config if rounds in (None, config.rounds) else config.continued(int(rounds or 0))


def mended(folder: RunFolder, say: Callable[[str], None], usable: Usable = without_memory) -> Found:
    """Put a run's damaged files aside, and return the checkpoint after which it continues.

    What a killed process left half-written is deleted. The caller has the folder alone.

    Args:
        folder: the run's.
        say: told one line of each damaged file; the run's events record it too.
        usable: as in `newest_usable`.

    Raises:
        ConfigError: no checkpoint can be used; then nothing is changed.
    """
    found = newest_usable(folder.path, usable)
    delete_unfinished(folder.path)
    for line in folder.mend():
        say(line)
    for path, reason in damaged_initials(folder.path).items():
        kept = set_aside(path).name
        folder.event("damaged", file=path.name, aside=kept, reason=reason)
        say(f"{reason}: the next checkpoint writes it again, and the damaged file is kept as '{kept}'")
    for path, reason in found.newer.items():
        kept = set_aside(path).name
        folder.event("damaged", file=path.name, aside=kept, reason=reason, round=found.server_round)
        say(
            f"{reason}: the run continues after round {found.server_round}, from '{found.file.name}'; "
            f"the checkpoint that cannot be used is kept as '{kept}'"
        )
    if found.checkpoint is not None and found.file.name != CHECKPOINT:
        os.replace(found.file, found.file.with_name(CHECKPOINT))
    return found
