"""Kill a command at its n-th write: what is written below a folder, by any of its processes, is counted.

A point is a call that opens a file for writing, renames, links, deletes or makes one, or changes its mode: the
process is killed before it. Writes through `open` and safetensors are points too: there half of the bytes are written
first.
"""

import builtins
import fcntl
import io
import os
import signal
import sys
from collections.abc import MutableMapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NoReturn

import safetensors.numpy

_NAMES = ("os.rename", "os.link", "os.remove", "os.mkdir", "os.rmdir", "os.chmod", "os.truncate", "os.symlink")
"""Events of Python's audit whose first one or two arguments are paths."""
_VARIABLE = "KILL_POINTS_"
COUNTER = f"{_VARIABLE}COUNTER"
"""A variable that all processes of the command have, and no others."""
_OPEN = builtins.open
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_TRUNC


@dataclass(frozen=True)
class KillPoint:
    """Where a command is killed.

    Attributes:
        folder: only writes below it count.
        counter: a file outside of it, with one byte for each point so far, of all processes.
        number: the point at which the command is killed; 0: never.
        command: process id of the command, which is killed before the process that writes; 0: it is that process.
    """

    folder: str
    counter: str
    number: int = 0
    command: int = 0

    def environment(self) -> dict[str, str]:
        """The variables from which `install_from` makes the same."""
        return {f"{_VARIABLE}{name.upper()}": str(value) for name, value in asdict(self).items()}

    def reached(self) -> bool:
        """Count a point; return whether it is the one."""
        with _OPEN(self.counter, "ab", buffering=0) as counter:
            fcntl.flock(counter, fcntl.LOCK_EX)
            counter.write(b".")
            return counter.tell() == self.number

    def die(self) -> NoReturn:
        """Kill the command, then this process."""
        if self.command:
            with suppress(ProcessLookupError):
                os.kill(self.command, signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("unreachable")

    def holds(self, path: Any) -> bool:
        """Whether a path lies below the folder, or is it."""
        if not isinstance(path, str | bytes | os.PathLike):
            return False
        name = os.path.abspath(os.fsdecode(path))
        return name == self.folder or name.startswith(self.folder + os.sep)

    def install(self) -> None:
        """Count from here on, for as long as this process and its forks live."""
        serialize, open_in = safetensors.numpy.serialize_file, os.open
        torn = _torn(self)

        def heard(event: str, arguments: tuple[Any, ...]) -> None:
            writes = event == "open" and isinstance(arguments[2], int) and arguments[2] & _WRITES
            named = arguments[:1] if writes else _placed(event, arguments) if event in _NAMES else ()
            if any(self.holds(path) for path in named) and self.reached():
                self.die()

        def opened(file: Any, mode: str = "r", *rest: Any, **options: Any) -> Any:
            if "b" in mode and mode.strip("rb") and self.holds(file):
                return torn(file, mode)
            return _OPEN(file, mode, *rest, **options)

        def opened_in(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
            if dir_fd is not None and flags & _WRITES and self.holds(_below(path, dir_fd)) and self.reached():
                self.die()
            return open_in(path, flags, mode, dir_fd=dir_fd)

        def serialized(arrays: Any, filename: Any, *rest: Any, **options: Any) -> Any:
            if self.holds(filename) and self.reached():
                half = Path(filename).with_name(".tmpHaLf00")  # as safetensors calls its own
                serialize(arrays, str(half), *rest, **options)
                os.truncate(half, half.stat().st_size // 2)
                self.die()
            return serialize(arrays, filename, *rest, **options)

        builtins.open = opened  # type: ignore[assignment]
        os.open = opened_in  # the audit does not say in which folder
        safetensors.numpy.serialize_file = serialized
        sys.addaudithook(heard)


def _placed(event: str, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the paths of an event, also of names in a folder that is open."""
    if event in ("os.rename", "os.link"):
        return tuple(map(_below, arguments[:2], arguments[2:4]))
    return (_below(arguments[0], arguments[-1]),) if event == "os.remove" else arguments[:2]


def _below(path: Any, folder: Any) -> Any:
    """Return a path that begins at the folder of a number; -1 or None: at none."""
    return path if folder in (-1, None) else os.path.join(os.readlink(f"/proc/self/fd/{folder}"), path)


def _torn(point: KillPoint) -> type[io.FileIO]:
    class Torn(io.FileIO):
        """A file whose process is killed when half of a write is done."""

        def write(self, data: Any) -> int:
            if point.reached():
                super().write(bytes(data)[: len(data) // 2])
                point.die()
            return super().write(data)

    return Torn


def install_from(environment: MutableMapping[str, str]) -> None:
    """Install the kill point of `KillPoint.environment`: for the ``sitecustomize.py`` of processes that are started.

    The first of them is the command; those that it starts inherit its process id.
    """
    names = [f"{_VARIABLE}{name}" for name in ("FOLDER", "COUNTER", "NUMBER", "COMMAND")]
    if environment[names[-1]] == "0":
        environment[names[-1]] = str(os.getpid())
    folder, counter, number, command = (environment[name] for name in names)
    KillPoint(folder, counter, int(number), int(command)).install()
