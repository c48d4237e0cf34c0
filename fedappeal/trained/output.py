"""Whether a file can be written, found out before the work."""

import os
from pathlib import Path

from fedappeal.protocol.config import ConfigError


def check_output(path: Path) -> None:
    """Check that a file may be written, or replaced.

    Raises:
        ConfigError: one line: a folder, a folder that is not there, or one without write permission.
    """
    folder = path.absolute().parent
    reason = ""
    if path.is_dir():
        reason = "it is a folder"
    elif not folder.is_dir():
        reason = f"there is no folder '{folder}'"
    elif not os.access(folder, os.W_OK):
        reason = f"folder '{folder}' cannot be written to"
    if reason:
        raise ConfigError(f"output = '{path}' is not allowed: {reason}")
