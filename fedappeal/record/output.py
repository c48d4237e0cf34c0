"""A file that a command writes for its user: none that it reads, and none of a run's record."""

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from fedappeal.protocol.keys import RUN_KEY
from fedappeal.record.lines import CONFIG, EVENTS, REQUIREMENTS, WRITTEN_ON
from fedappeal.record.reader import Record
from fedappeal.settings.config import ConfigError
from fedappeal.system.files import check_file, state_of


def check_output(name: str, path: Path, inputs: Iterable[Path] = ()) -> None:
    """Check that a file can be written, and replaces no input and no file of a run's record.

    Args:
        name: of the option.
        path: the file.
        inputs: what the command reads.

    Raises:
        ConfigError: one line: such a file, a folder, or where no file can be made.
    """
    check_file(name, path)
    state = state_of(path)
    read = state and any(os.path.samestat(state, other) for other in map(state_of, inputs) if other)
    named = path.name in (CONFIG, REQUIREMENTS, *WRITTEN_ON) or path.name.endswith(".lock")
    named = named or (state is not None and path.suffix == ".safetensors")
    folders = (path.parent.resolve() / path.name).parents
    if read or (named and any(map(_is_run, folders))):
        whose = "it is read here" if read else "it is a file of the run in its folder"
        raise ConfigError(f"{name} = '{path}' is not allowed: {whose}; name another file")


def _is_run(folder: Path) -> bool:
    with suppress(ConfigError):  # models and other programs have a config.json too
        if RUN_KEY in Record(folder).config:
            return True
    return (folder / EVENTS).exists()
