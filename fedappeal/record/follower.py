"""Reads the lines that a run adds to its folder.

It begins anew where a resume has taken rounds back, or the folder holds another run.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedappeal.data.data_size import check_size
from fedappeal.protocol.keys import RUN_KEY
from fedappeal.record.decisions import decisions_of
from fedappeal.record.lines import EVENTS, HISTORY, PARTICIPATION, parsed_line, split_check
from fedappeal.record.reader import FAILED, FINISHED, Record, Snapshot
from fedappeal.settings.config import ConfigError
from fedappeal.system.plain_files import LARGEST, open_plain

Line = dict[str, Any]
MOST_WAITS = 10
"""Looks for which a run that has rewritten its files may take to say that it was resumed."""
Watch = Callable[[str, Line], None]
"""Told of each new line of a run's folder: ``("round" | "event", line)``; a round's holds its ``decisions``."""


class Tail:
    """A file of JSON lines, read from where the last read ended."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._inode: int | None = None
        self._offset = self._size = 0

    def read(self) -> list[Line] | None:
        """Return the file's new lines; None if the file was removed or replaced.

        A line that is not finished yet is read next time; a damaged one is left out. Behind a line that is too long
        nothing is read.
        """
        lines: list[Line] = []
        try:
            with open(self._path, "rb", opener=open_plain) as file:
                state = os.fstat(file.fileno())
                if self._inode is not None and (state.st_ino != self._inode or state.st_size < self._offset):
                    return None
                self._inode = state.st_ino
                if state.st_size == self._size:
                    return []
                self._size = state.st_size
                check_size(self._size, "its lines")
                file.seek(self._offset)
                while (text := file.readline(LARGEST + 1)).endswith(b"\n"):
                    self._offset += len(text)
                    if (line := _usable(text.removesuffix(b"\n"))) is not None:
                        lines.append(line)
        except (OSError, ValueError):
            pass
        return lines


@dataclass(frozen=True)
class News:
    """The new lines of a run's folder since the last look.

    Attributes:
        anew: whether all that was read before is void: the run was resumed and stands here again, the folder holds
            another run, or it holds none any more.
        events: lines; ``rounds``: of the history; ``decisions``: of the participation, packed, of these rounds.
        new_events: those of the events that were not read before.
        new_rounds: those of the rounds that were not read before, or are run again.
    """

    anew: bool = False
    events: Sequence[Line] = ()
    rounds: Sequence[Line] = ()
    decisions: Sequence[Line] = ()
    new_events: Sequence[Line] = ()
    new_rounds: Sequence[Line] = ()


class Follower:
    """A reader of a run's new lines, each once.

    A run that is resumed rewrites its files without the rounds that it runs again, then says so in its events:
    between the two, nothing is read.

    Args:
        path: the run's folder; it may not be there yet.
        decisions: whether the decisions are read.
        after: rounds up to this one are known already.
        resumed: resumptions of which ``after`` takes account.

    Attributes:
        after, resumed: the same, as of the last look.
    """

    def __init__(self, path: Path, *, decisions: bool = False, after: int = 0, resumed: int = 0) -> None:
        self.after, self.resumed = after, resumed
        self._path, self._reads_decisions = path, decisions
        self._run_key: object = None
        self._void = False
        self._begin()

    def _begin(self) -> None:
        self._known_events = self._waits = 0
        self._started = False
        self._start()

    def _start(self) -> None:
        self._events, self._history = Tail(self._path / EVENTS), Tail(self._path / HISTORY)
        self._participation = Tail(self._path / PARTICIPATION)
        self._early: list[Line] = []
        self._last = 0
        self._whole = True

    def read(self, over: bool = False) -> News:
        """Return the folder's new lines.

        Args:
            over: whether nothing writes there any more: then no later look will find what this one does not.
        """
        news = self._look()
        while over and self._waits:
            news = self._look()
        return news

    def _look(self) -> News:
        run_key = None
        with suppress(ConfigError):
            run_key = Record(self._path).config.get(RUN_KEY)
        if self._run_key not in (None, run_key):
            self.after, self.resumed, anew = 0, 0, self._started
            self._begin()
            if run_key is None:  # the folder was removed, or is just being
                return News(anew)
            self._void = anew
        self._run_key = run_key
        events = self._events.read()
        if events is None or (not self._whole and any(line.get("event") == "resumed" for line in events)):
            self._start()
            events = self._events.read() or []
        resumptions = [line for line in events if line.get("event") == "resumed"]
        missed = resumptions[self.resumed :] if self._whole else resumptions
        if self._whole and self._started and not missed and self._waits < MOST_WAITS:
            return self._later()
        rounds = self._history.read()
        decisions = self._participation.read() if self._reads_decisions else []
        if rounds is None or decisions is None:
            return self._later()
        news = self._news(events, rounds, decisions, [int(line.get("round", 0)) for line in missed])
        self.resumed = len(resumptions) + (0 if self._whole else self.resumed)
        self._started, self._whole, self._waits, self._void = True, False, 0, False
        return news

    def _later(self) -> News:
        """Start again with the next read.

        The run is about to say after which round it continues.
        """
        self._waits += 1
        self._start()
        return News()

    def _news(self, events: list[Line], rounds: list[Line], decisions: list[Line], back_to: Sequence[int]) -> News:
        self.after = min(self.after, *back_to) if back_to else self.after
        rounds = [line for line in rounds if "round" in line]
        if rounds:
            self.after = min(self.after, self._last_of(rounds)) if self._whole else self.after
            self._last = self._last_of(rounds)
        new_rounds = [line for line in rounds if line["round"] > self.after]
        self.after = max(self.after, self._last_of(new_rounds))
        # A round's decisions are written before its line.
        decisions = self._early + decisions
        self._early = [line for line in decisions if line.get("round", 0) > self._last]
        decisions = [line for line in decisions if line.get("round", 0) <= self._last]
        new_events = events[self._first_new(events) :] if self._whole else events
        self._known_events = len(_lasting(events)) + (0 if self._whole else self._known_events)
        return News(self._void or (self._whole and self._started), events, rounds, decisions, new_events, new_rounds)

    @staticmethod
    def _last_of(rounds: Sequence[Mapping[str, Any]]) -> int:
        return int(rounds[-1]["round"]) if rounds else 0

    def _first_new(self, events: Sequence[Line]) -> int:
        """Return the place of the first unread event.

        A resume drops only beginnings of rounds.
        """
        if not self._known_events:
            return 0
        lasting = _lasting(events)
        return lasting[self._known_events] if len(lasting) > self._known_events else len(events)


class WatchedRun:
    """A follower that reports each new line of a run's folder to a watch.

    Attributes:
        finished: whether the run has said that it finished.
        failed: why it failed, empty otherwise.
    """

    def __init__(self, path: Path, watch: Watch) -> None:
        self.finished, self.failed = False, ""
        self._follower = Follower(path, decisions=True)
        self._watch = watch
        self._snapshot = Snapshot()
        self._follower.read()

    def read(self, over: bool = False) -> None:
        """Report all new lines; ``over`` as of `Follower.read`."""
        news = self._follower.read(over)
        for line in news.new_events:
            self._snapshot.event(line)
            self._watch("event", line)
        for line in news.new_rounds:
            self._watch("round", {**line, "decisions": decisions_of(news.decisions, line["round"])})
        self.finished = self._snapshot.state == FINISHED
        self.failed = self._snapshot.reason if self._snapshot.state == FAILED else ""


def _lasting(events: Sequence[Line]) -> list[int]:
    """Return the numbers of the lines that no resume drops: all but beginnings of rounds."""
    return [number for number, line in enumerate(events) if line.get("event") != "round"]


def _usable(text: bytes) -> Line | None:
    try:
        return parsed_line(split_check(text)[0])
    except ValueError:
        return None
