"""Trackers of several runs, each followed from when its folder is there until it has ended."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from fedappeal.record.files import CONFIG
from fedappeal.record.reader import Record
from fedappeal.record.snapshot import FAILED
from fedappeal.views.tracking.following import Following, Say
from fedappeal.views.tracking.registry import MakeTracker


class SweepTracking:
    """Tracks each run of a sweep."""

    def __init__(self, folders: Sequence[Path], makers: Sequence[MakeTracker], say: Say) -> None:
        self._makers = makers
        self._say = say
        self._waiting = dict(enumerate(folders))
        self._folders = tuple(folders)
        self._running: dict[int, list[Following]] = {}
        self._ended: list[Following] = []

    def update(self) -> None:
        """Begin with the runs that have begun; called a few times a second."""
        if self._makers:
            for number in [number for number, path in self._waiting.items() if (path / CONFIG).is_file()]:
                self._begin(number)

    def ended(self, number: int, reason: str) -> None:
        """The run of that number is over; ``reason``: why it failed, or empty."""
        if not self._makers:
            return
        if number in self._waiting:
            self._begin(number)
        self._end(number, FAILED if reason else "")

    def wait(self) -> None:
        """Wait for the trackers of all runs; those that are not over were interrupted."""
        for number in list(self._running):
            self._end(number)
        for each in self._ended:
            each.wait()

    def _begin(self, number: int) -> None:
        path = self._waiting.pop(number)
        self._running[number] = [Following(make, path, self._say) for make in self._makers]
        for each in self._running[number]:
            each.start()

    def _end(self, number: int, how: str = "") -> None:
        self._ended = [each for each in self._ended if each.is_alive()]
        for each in self._running.pop(number, ()):
            each.over(how or Record(self._folders[number]).standing.process_end)
            self._ended.append(each)


@contextmanager
def all_tracked(folders: Sequence[Path], makers: Sequence[MakeTracker], say: Say) -> Iterator[SweepTracking]:
    """Track several runs while the block runs them.

    Args:
        folders: the runs'.
        makers: make the trackers of each.
        say: told of a tracker that is dropped.
    """
    tracking = SweepTracking(folders, makers, say)
    try:
        yield tracking
    finally:
        tracking.wait()
