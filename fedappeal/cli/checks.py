"""Checks of the files that commands write."""

import os
from pathlib import Path

from fedappeal.settings.config import ConfigError


def check_file(name: str, path: Path) -> None:
    """Check that a file can be written; its folder may still have to be made.

    Args:
        name: of the option.
        path: the file.

    Raises:
        ConfigError: a folder, or where no file can be made.
    """
    folder = next(parent for parent in path.absolute().parents if parent.exists())
    if path.is_dir():
        raise ConfigError(f"{name} = '{path}' is not allowed: it is a folder")
    if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        raise ConfigError(f"{name} = '{path}' is not allowed: no file can be made in '{folder}'")
