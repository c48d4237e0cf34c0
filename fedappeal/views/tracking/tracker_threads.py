"""Trackers at work: one thread each, which reads a run's folder and hands the tracker what is new.

The run never waits for it: a tracker that is slow lags behind, one that raises or hangs is dropped with one line.
What it had recorded is in ``tracker-NAME.json`` in the run's folder, so that a continued run continues there.
"""

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedappeal.protocol import keys
from fedappeal.protocol.foreign_text import one_line, parse_json, printable
from fedappeal.record.follower import Follower
from fedappeal.record.lines import CONFIG, MODEL
from fedappeal.record.reader import FAILED, FINISHED, INTERRUPTED, Record
from fedappeal.settings.config import ConfigError
from fedappeal.system.files import replace_file
from fedappeal.system.plain_files import read_bytes
from fedappeal.views.tracking.tracker import MakeTracker, TrackedRun, Tracker

Say = Callable[[str], None]
"""Shows one line to the user."""

PATIENCE = 60.0
"""Seconds without a sign of life after which a tracker is dropped, when its run is over."""
_POLL = 0.5
_RECORD_EVERY = 2.0
_LARGEST = 2**1000  # a whole number that a float can hold


class Following(threading.Thread):
    """Feeds one tracker from one run's folder until the run is over."""

    def __init__(self, name: str, make: MakeTracker, folder: Path, say: Say, patience: float = PATIENCE) -> None:
        super().__init__(name=f"tracker-{name}", daemon=True)
        self._called, self._make = name, make
        self._folder = folder
        self._say = say
        self._patience = patience
        self._over = threading.Event()
        self._how = FINISHED
        self._dropped = False
        self._alive_at = time.monotonic()
        self._id = ""
        self._follower = Follower(folder)

    def over(self, how: str) -> None:
        """Tell the thread how the run has ended, once its files are complete."""
        self._how = how
        self._alive_at = time.monotonic()
        self._over.set()

    def wait(self) -> None:
        """Wait until the tracker has recorded all, while it shows signs of life."""
        while self.is_alive():
            self.join(0.05)
            if time.monotonic() - self._alive_at > self._patience:
                self._drop(f"no answer for {self._patience:g} s")
                return

    def run(self) -> None:
        """Follow the run in this thread."""
        try:
            config = self._folder / CONFIG
            while not config.is_file() and not self._over.wait(_POLL):
                pass
            if config.is_file():
                self._follow()
            else:
                self._drop(f"the run's folder '{self._folder}' is not seen from here")
        except BaseException as error:  # a tracker may raise anything, and ends nothing but itself
            self._drop(one_line(f"{type(error).__name__}: {error}"))

    def _follow(self) -> None:
        tracker = self._make()  # here: one that is slow to make holds up this thread alone
        run = tracked_run(self._folder, self._called)
        self._follower = Follower(self._folder, after=run.after, resumed=run.resumed)
        self._id = tracker.begin(run)
        self._record()
        recorded_at = time.monotonic()
        while True:
            over = self._over.is_set()  # asked before it reads: then all that the run wrote is there
            self._read(tracker, over)
            if over:
                break
            if time.monotonic() - recorded_at > _RECORD_EVERY:
                self._record()
                recorded_at = time.monotonic()
            self._over.wait(_POLL)
        model = self._folder / MODEL
        if self._how == FINISHED and model.is_file():
            tracker.model(model)
        self._alive_at = time.monotonic()
        tracker.end(self._how)
        self._record()

    def _read(self, tracker: Tracker, over: bool) -> None:
        for line in self._follower.read(over).new_rounds:
            if self._dropped:
                return
            tracker.round(int(line["round"]), numbers(line))
            self._alive_at = time.monotonic()

    def _record(self) -> None:
        text = json.dumps({"id": self._id, "round": self._follower.after, "resumed": self._follower.resumed}) + "\n"
        file = record_of(self._folder, self._called)
        try:
            replace_file(file, text.encode())
        except FileNotFoundError:  # a run that continues clears away what looks half-written
            replace_file(file, text.encode())

    def _drop(self, reason: str) -> None:
        if not self._dropped:
            self._dropped = True
            self._say(f"the tracker {self._called} is dropped: {printable(reason)}; the run is not touched")


def tracked_run(folder: Path, name: str) -> TrackedRun:
    """Return the tracker's view of a run, from the run's folder.

    Raises:
        ConfigError: the folder holds no run, or the tracker's record is damaged.
    """
    record = Record(folder)
    settings, recorded = record.settings, record.config
    tags = {key: str(settings[key]) for key in ("strategy", "task", "seed")}
    tags |= {keys.RUN_KEY: str(recorded.get(keys.RUN_KEY, ""))}
    tags |= {f"version-{package}": str(number) for package, number in dict(recorded.get("versions", {})).items()}
    file = record_of(folder, name)
    if not file.is_file():
        return TrackedRun(folder, settings, tags)
    try:
        last = parse_json(read_bytes(file))
        return TrackedRun(folder, settings, tags, str(last["id"]), int(last["round"]), int(last.get("resumed", 0)))
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ConfigError(f"file '{file}' cannot be read: {error}") from None


def record_of(folder: Path, name: str) -> Path:
    """Return the file of a tracker's record in a run's folder."""
    return folder / f"tracker-{name}.json"


def numbers(line: Mapping[str, Any]) -> dict[str, float]:
    """Return all numbers of a line of the history, by column."""
    return {
        key: float(value)
        for key, value in line.items()
        if key != "round" and isinstance(value, int | float) and (isinstance(value, float) or abs(value) < _LARGEST)
    }


class Tracking:
    """The trackers of several runs.

    Each run is followed from when its folder is there until it has ended.

    Args:
        folders: the runs'.
        makers: make the trackers of each, by name.
        say: told of a tracker that is dropped.
    """

    def __init__(self, folders: Sequence[Path], makers: Mapping[str, MakeTracker], say: Say) -> None:
        self._makers, self._say = makers, say
        self._folders = tuple(folders)
        self._waiting = set(range(len(folders))) if makers else set()
        self._running: dict[int, list[Following]] = {}
        self._ended: list[Following] = []

    def update(self) -> None:
        """Begin with the runs that have begun; called a few times a second."""
        for number in [number for number in self._waiting if (self._folders[number] / CONFIG).is_file()]:
            self.begin(number)

    def begin(self, number: int) -> None:
        """Follow a run by its number, unless it is followed already."""
        if number in self._waiting:
            self._waiting.remove(number)
            self._running[number] = [
                Following(name, make, self._folders[number], self._say) for name, make in self._makers.items()
            ]
            for following in self._running[number]:
                following.start()

    def ended(self, number: int, reason: str) -> None:
        """Record that a run is over; ``reason`` says why it failed, else empty."""
        self.begin(number)
        self._end(number, FAILED if reason else "")

    def wait(self) -> None:
        """Wait for all trackers; a run that is not over was interrupted."""
        for number in list(self._running):
            self._end(number)
        for following in self._ended:
            following.wait()

    def _end(self, number: int, how: str = "") -> None:
        self._ended = [following for following in self._ended if following.is_alive()]
        for following in self._running.pop(number, ()):
            following.over(how or _process_end(self._folders[number]))
            self._ended.append(following)


def _process_end(folder: Path) -> str:
    try:
        return Record(folder).standing.process_end
    except ConfigError:  # a damaged folder is said by what needs it
        return INTERRUPTED


@contextmanager
def track_run(folder: Path, makers: Mapping[str, MakeTracker], say: Say) -> Iterator[None]:
    """Track a run during the block; its folder may come later.

    Arguments as of `Tracking`.
    """
    with track_runs([folder], makers, say) as tracking:
        tracking.begin(0)
        try:
            yield
        except Exception as error:
            tracking.ended(0, str(error) or FAILED)
            raise


@contextmanager
def track_runs(folders: Sequence[Path], makers: Mapping[str, MakeTracker], say: Say) -> Iterator[Tracking]:
    """Track several runs while the block runs them; arguments as of `Tracking`."""
    tracking = Tracking(folders, makers, say)
    try:
        yield tracking
    finally:
        tracking.wait()
