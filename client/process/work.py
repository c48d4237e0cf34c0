"""The message that a client works on now, in a file of its state folder."""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter

from fedappeal.protocol.foreign_text import printable
from fedappeal.system.files import replace_file

WORKING = "working"
"""The file's name in the state folder; it is there while a message is worked on."""
_LONGEST = 200
_MOST_BYTES = 4000


@dataclass(frozen=True)
class Work:
    """A message that is worked on.

    Attributes:
        what: what it asks for, in a few words, which its server wrote in part.
        since: when the work began, in seconds since 1970.
    """

    what: str
    since: float


_WORK: TypeAdapter[Work] = TypeAdapter(Work)


def forget_work(folder: Path | None) -> None:
    """Forget what an earlier process of this client worked on when it ended."""
    if folder is not None:
        with suppress(OSError):
            (folder / WORKING).unlink(missing_ok=True)


@contextmanager
def working(folder: Path | None, what: str, clock: Callable[[], float] = time.time) -> Iterator[None]:
    """Say that a message is worked on until the `with` ends; a full disk changes nothing of the work.

    Args:
        folder: the state folder; None: there is none, and nothing is said.
        what: what it asks for.
        clock: seconds since 1970.
    """
    if folder is None:
        yield
        return
    text = json.dumps({"what": printable(what, _LONGEST), "since": clock()})
    with suppress(OSError):
        replace_file(folder / WORKING, text.encode(), durable=False, mode=0o600)
    try:
        yield
    finally:
        forget_work(folder)


def work_of(folder: Path) -> Work | None:
    """Return what a client works on; None: on nothing, or what the file says cannot be read."""
    try:
        with (folder / WORKING).open("rb") as file:
            return _WORK.validate_json(file.read(_MOST_BYTES))
    except (OSError, ValueError):
        return None
