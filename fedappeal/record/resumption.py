"""Whether and how a run continues: runtime, settings, total of rounds."""

from pathlib import Path
from typing import Any

from fedappeal.record.run_folder import (
    CHECKPOINT,
    CONFIG,
    INITIAL,
    RunFolder,
    Usable,
    checkpoint_round,
    how_it_ended,
    read_config,
    recorded_settings,
    without_memory,
)
from fedappeal.settings.config import ConfigError, RunConfig, Scalar
from fedappeal.system.files import read_values

KIND = "kind"
"""Key of a run's runtime under which its name stands."""
LOCAL, SIMULATION, SUBMITTED = "local", "simulation", "submitted"


def is_local(path: Path) -> bool:
    """Whether a run was started with processes of this machine alone, all of its user's own."""
    runtime = read_config(path).get("runtime")
    return isinstance(runtime, dict) and runtime.get(KIND) == LOCAL


def runtime_of(path: Path) -> dict[str, Any]:
    """Return the runtime of a run: its ``kind``, and what else ``config.json`` says of it.

    Raises:
        ConfigError: if the folder holds no run, or does not say.
    """
    runtime = read_config(path).get("runtime", {})
    if not isinstance(runtime, dict) or not all(isinstance(value, Scalar) for value in runtime.values()):
        raise ConfigError(f"'{path}' is not the folder of a run: the runtime in its {CONFIG} is no object of scalars")
    if not runtime and (path / INITIAL).exists():  # a local run of a version that did not record it
        return {KIND: LOCAL}
    if runtime.get(KIND) not in (LOCAL, SIMULATION, SUBMITTED):
        raise ConfigError(
            f"'{path}' holds a run that cannot continue: its {CONFIG} does not say how it was started "
            f"({LOCAL}, {SIMULATION}, {SUBMITTED})"
        )
    if not runtime.get("resumable", True):
        raise ConfigError(f"'{path}' holds a simulated run whose clients' memory was not kept: it cannot continue")
    return runtime


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
    from server.checkpoints import newest_usable  # Flower, which takes a second

    config = RunConfig.parse_recorded(recorded_settings(path))
    RunFolder.open(path)
    ended, done = how_it_ended(path), newest_usable(path, usable).server_round
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


def rounds_done(path: Path) -> int:
    """Return the round of a run's newest checkpoint; 0: there is none.

    Raises:
        ConfigError: the checkpoint cannot be read.
    """
    checkpoint = path / CHECKPOINT
    return checkpoint_round(checkpoint, read_values(checkpoint)) if checkpoint.exists() else 0


def schedule_rounds(folder: RunFolder, rounds: int) -> int:
    """Return the setting ``schedule-rounds`` of a run that continues to a total of rounds."""
    began = RunConfig.parse_recorded(recorded_settings(folder.path), ignore_unknown=True)
    return began.schedule_rounds if rounds == began.rounds else began.scheduled_rounds
