"""Signs of a serving client process in its state folder.

They say which message it works on, and its latest event.
"""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, TypeVar

from pydantic import Field, TypeAdapter

from fedappeal.protocol.foreign_text import printable
from fedappeal.system.files import replace_file

WORKING = "working"
"""The file's name in the state folder; it is there while a message is worked on."""
EVENT = "event.json"
"""Name of the file with the latest event."""
RESTS = "paused: "
"""How an event begins by which a client rests; the reason follows."""
OWNERS_PAUSE = "nothing is worked on, as its owner said"
"""The reason of a pause, which a file of its own says, too."""
CONNECTING, CONNECTED, AWAY, ENDED = "connecting", "connected", "away", "ended"
_LINKS = {"started": CONNECTING, "connected": CONNECTED, "answered": CONNECTED, "waiting": AWAY}
_LINKS |= {"ended": ENDED, "given-up": ENDED}
_LONGEST = 200
_LONGEST_EVENT = 500
_MOST_BYTES = 16 * 1024
Moment = Annotated[float, Field(ge=0.0, le=253402214400.0)]
"""Seconds since 1970, to the end of the year 9999; a damaged file may hold others."""
T = TypeVar("T")


@dataclass(frozen=True)
class Work:
    """A message that is worked on.

    Attributes:
        what: what it asks for, in a few words, which its server wrote in part.
        since: when the work began, in seconds since 1970.
        training: whether the client has joined, and trains.
    """

    what: str
    since: Moment
    training: bool = False


@dataclass(frozen=True)
class LatestEvent:
    """The latest event of a serving process.

    Attributes:
        text: the log's line.
        at: when, in seconds since 1970.
        link: how the SuperLink is reached since: ``connecting``, ``connected``, ``away`` or ``ended``.
        since: since when it is so, in seconds since 1970.
        resting: the limit for which it rests; empty: for none.
    """

    text: str
    at: Moment
    link: str
    since: Moment
    resting: str = ""


_WORK: TypeAdapter[Work] = TypeAdapter(Work)
_EVENT: TypeAdapter[LatestEvent] = TypeAdapter(LatestEvent)


def note_event(folder: Path | None, kind: str, text: str) -> None:
    """Note an event of the serving process; a full disk changes nothing of its work.

    Args:
        folder: the state folder; None: there is none, and nothing is noted.
        kind: as of `client.process.serve.Event`, or ``started``.
        text: the log's line.
    """
    if folder is not None:
        before, now = event_of(folder), time.time()
        link = _LINKS.get(kind) or (before.link if before else CONNECTING)
        since = before.since if before and before.link == link and kind != "started" else now
        reason = text.removeprefix(RESTS) if kind == "paused" else ""
        limit = "" if reason == OWNERS_PAUSE else reason
        event = LatestEvent(printable(text, _LONGEST_EVENT), now, link, since, limit)
        if not _write(folder / EVENT, event) and before and before.resting:
            _delete(folder / EVENT)  # a rest that has ended is not said for good


def event_of(folder: Path) -> LatestEvent | None:
    """Return the latest event of a client's process.

    None where there is none, or where it cannot be read.
    """
    return _read(folder / EVENT, _EVENT)


def forget_work(folder: Path | None) -> None:
    """Forget what an earlier process of this client worked on when it ended."""
    if folder is not None:
        _delete(folder / WORKING)


@contextmanager
def working(folder: Path | None, what: str, clock: Callable[[], float] = time.time) -> Iterator[None]:
    """Say that a message is worked on until the `with` ends.

    A full disk changes nothing of the work.

    Args:
        folder: the state folder; None: there is none, and nothing is said.
        what: what it asks for.
        clock: seconds since 1970.
    """
    if folder is None:
        yield
        return
    _write(folder / WORKING, Work(printable(what, _LONGEST), clock()))
    try:
        yield
    finally:
        forget_work(folder)


def note_training(folder: Path) -> None:
    """Note that the work is now a training.

    Nothing is noted where no message is, as under a stock SuperNode.
    """
    if (work := work_of(folder)) is not None:
        _write(folder / WORKING, replace(work, training=True))


def work_of(folder: Path) -> Work | None:
    """Return what a client works on.

    None where it works on nothing, or where the file cannot be read.
    """
    return _read(folder / WORKING, _WORK)


def _write(path: Path, sign: Work | LatestEvent) -> bool:
    """Return whether it could be written."""
    with suppress(OSError):
        replace_file(path, json.dumps(asdict(sign)).encode(), durable=False, mode=0o600)
        return True
    return False


def _delete(path: Path) -> None:
    with suppress(OSError):
        path.unlink(missing_ok=True)


def _read(path: Path, kind: TypeAdapter[T]) -> T | None:
    try:
        with path.open("rb") as file:
            return kind.validate_json(file.read(_MOST_BYTES))
    except (OSError, ValueError):
        return None
