"""Regular files of a folder that a stranger may have made.

They are opened by the folder's descriptor, never through a link.

The folder itself may be reached through a link. What an archive can bring along inside (links, pipes, a second name
of a file elsewhere, gigabytes of holes) is refused in one line.
"""

import errno
import os
import stat
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fedappeal.protocol.foreign_text import printable
from fedappeal.settings.config import ConfigError

OF_THE_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO)
"""Errors of the system for which a program has nothing to explain: full, read-only, forbidden, damaged."""
LARGEST = 1 << 27
"""Bytes of a text that is held at once: a line, or a file of JSON. A million clients fit into a line."""
WANDB = "wandb"
"""Sub-folder in which W&B keeps links to files beside them."""
_WANDBS_LOG = ("logs", "debug-core.log")
"""The end of a path in it that leads to a file of the user's cache; W&B makes the link anew for each run."""
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_NO_LINK = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # a pipe would be waited for
_TAIL = 1 << 16
_LONGEST_NAME = 200


class NotPlain(OSError):
    """A file is a link, not regular, or has a second name.

    ``strerror`` says which.
    """

    def __init__(self, why: str) -> None:
        super().__init__(errno.ELOOP, why)


@contextmanager
def descriptor(folder: str | Path) -> Iterator[int]:
    """Open a folder for the block, and yield its descriptor.

    Files are opened and renamed by it, wherever its path leads meanwhile.
    """
    number = os.open(folder, _FOLDER)
    try:
        yield number
    finally:
        os.close(number)


def open_plain(path: str | os.PathLike[str], flags: int = os.O_RDONLY, mode: int = 0o666) -> int:
    """Open a regular file that is no link; return its number.

    An ``opener`` of `open`.

    Args:
        path: the file; only its folder may be reached through a link.
        flags: as of `os.open`; with `os.O_CREAT` it is made where it is not there.
        mode: of a new file, without what the umask takes away.

    Raises:
        NotPlain: it is a link, a pipe, a device or a folder; or it is to be changed, and has a second name.
        OSError: it cannot be opened.
    """
    parent, name = os.path.split(path)
    folder = os.open(parent or os.curdir, _FOLDER)
    try:
        number = os.open(name, flags & ~os.O_TRUNC | _NO_LINK, mode, dir_fd=folder)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EMLINK):
            raise NotPlain("it is a link") from None
        if error.errno == errno.ENXIO:  # a pipe that nobody reads, a socket
            raise NotPlain("it is no file") from None
        raise
    finally:
        os.close(folder)
    try:
        state = os.fstat(number)
        if not stat.S_ISREG(state.st_mode):
            raise NotPlain("it is no file")
        if state.st_nlink > 1 and flags & os.O_ACCMODE != os.O_RDONLY:
            raise NotPlain("it has a second name, whose file would change too (copy the folder)")
        if flags & os.O_TRUNC:
            os.ftruncate(number, 0)
    except BaseException:
        os.close(number)
        raise
    return number


def read_bytes(path: Path) -> bytes:
    """Return a small file's content.

    Raises:
        ValueError: it is larger than `LARGEST`.
        OSError: as `open_plain`.
    """
    with open(path, "rb", opener=open_plain) as file:
        content = file.read(LARGEST + 1)
    if len(content) > LARGEST:
        raise ValueError(f"it is longer than {LARGEST:,} bytes")
    return content


def last_line(path: Path) -> str:
    """Return a log's last line that is not blank; empty if none.

    Errors as `open_plain`.
    """
    with open(path, "rb", opener=open_plain) as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL))
        lines = file.read(_TAIL).decode(errors="replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


def open_lock(path: str | os.PathLike[str], flags: int = os.O_RDWR | os.O_CREAT) -> int:
    """Open a lock's file, readable only by those who can write it.

    Returns its number; an ``opener`` of `open`.

    A user who can open a file can hold its lock. Errors as `open_plain`.
    """
    number = open_plain(path, flags, 0o600)
    mode = stat.S_IMODE(os.fstat(number).st_mode)
    if mode != (private := mode & ~((~mode & 0o222) << 1)):  # each one's right to read without one to write
        with suppress(PermissionError):  # another user's
            os.fchmod(number, private)
    return number


def check_plain(folder: Path, changed: bool = False) -> None:
    """Check that a run's folder holds regular files and folders alone, in all its depths.

    Links that W&B makes lie in its sub-folder, and lead nowhere out of it but to its log.

    Args:
        folder: the folder; it may be reached through a link, and need not be there.
        changed: whether files are to be changed: then no file may have a second name outside of the folder.

    Raises:
        ConfigError: names the first other thing.
    """
    names: Counter[tuple[int, int]] = Counter()
    shared: dict[tuple[int, int], tuple[str, int]] = {}
    for path in paths_in(folder):
        try:
            state = os.lstat(path)
        except FileNotFoundError:  # a run that is under way replaces files
            continue
        if stat.S_ISLNK(state.st_mode):
            if not _is_wandbs(folder, path):
                raise _refusal(folder, path, "is a link")
        elif not (stat.S_ISREG(state.st_mode) or stat.S_ISDIR(state.st_mode)):
            raise _refusal(folder, path, "is no file")
        elif stat.S_ISREG(state.st_mode) and state.st_nlink > 1:
            inode = state.st_dev, state.st_ino
            names[inode] += 1
            shared[inode] = path, state.st_nlink
    for inode, (path, links) in shared.items() if changed else ():
        if names[inode] < links:
            raise _refusal(folder, path, "is a file with another name elsewhere, which would change too")


def paths_in(folder: Path) -> Iterator[str]:
    """Yield all readable paths in and below a folder."""
    for place, folders, files in os.walk(folder):
        yield from (os.path.join(place, name) for name in (*folders, *files))


def _is_wandbs(folder: Path, path: str) -> bool:
    """Whether a link in W&B's sub-folder leads to W&B's own files.

    A place in the sub-folder, or the log of W&B's own process.
    """
    first, *parts = Path(path).relative_to(folder).parts
    if first != WANDB or not parts:
        return False
    inside = Path(os.path.realpath(folder), WANDB)
    return tuple(parts[1:]) == _WANDBS_LOG or Path(os.path.realpath(path)).is_relative_to(inside)


def _refusal(folder: Path, path: str, why: str) -> ConfigError:
    name = printable(os.path.relpath(path, folder), _LONGEST_NAME)
    return ConfigError(f"'{folder}' is not used as the folder of a run: '{name}' in it {why}")
