"""Folders and logs that other users of this machine cannot read."""

import os
from pathlib import Path
from typing import BinaryIO


def private_folder(path: Path) -> None:
    """Make a folder, where it is not there, and make it its owner's alone (0700)."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.chmod(0o700)


def private_log(path: Path) -> BinaryIO:
    """Return a file opened to be added to, its owner's alone (0600)."""
    number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.fchmod(number, 0o600)
    return os.fdopen(number, "ab")
