"""What a run's folder says of how the run continues: runtime, rounds, schedule."""

from pathlib import Path
from typing import Any

from fedappeal.record.files import CHECKPOINT, CONFIG, INITIAL
from fedappeal.record.folder import RunFolder, checkpoint_round
from fedappeal.record.reader import Record
from fedappeal.settings.config import ConfigError, RunConfig, Scalar
from fedappeal.system.files import read_values

KIND = "kind"
"""Key of a run's runtime under which its name stands."""
LOCAL, SIMULATION, SUBMITTED = "local", "simulation", "submitted"


def is_local(path: Path) -> bool:
    """Whether a run was started with processes of this machine alone, all of its user's own."""
    runtime = Record(path).config.get("runtime")
    return isinstance(runtime, dict) and runtime.get(KIND) == LOCAL


def runtime_of(path: Path) -> dict[str, Any]:
    """Return the runtime of a run: its ``kind``, and what else ``config.json`` says of it.

    Raises:
        ConfigError: if the folder holds no run, or does not say.
    """
    runtime = Record(path).config.get("runtime", {})
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


def rounds_done(path: Path) -> int:
    """Return the round of a run's newest checkpoint; 0: there is none.

    Raises:
        ConfigError: the checkpoint cannot be read.
    """
    checkpoint = path / CHECKPOINT
    return checkpoint_round(checkpoint, read_values(checkpoint)) if checkpoint.exists() else 0


def schedule_rounds(folder: RunFolder, rounds: int) -> int:
    """Return the setting ``schedule-rounds`` of a run that continues to a total of rounds."""
    began = RunConfig.parse_recorded(Record(folder.path).settings, ignore_unknown=True)
    return began.schedule_rounds if rounds == began.rounds else began.scheduled_rounds
