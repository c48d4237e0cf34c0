"""A tracker, for TensorBoard, MLflow, W&B and others, and which a user chose."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from fedappeal.core.plugins import Plugin, Registry, parse_section
from fedappeal.core.registry import BUILT_IN
from fedappeal.settings.config import ConfigError, Scalar, section
from fedappeal.system.packages import require


@dataclass(frozen=True)
class TrackedRun:
    """A run, as its tracker sees it.

    Attributes:
        folder: the run's folder.
        settings: every setting of the run, by its key; those of plug-ins under ``NAME.KEY``.
        tags: strategy, task, seed, run-key and versions, as texts.
        id: what `Tracker.begin` returned when the run was first tracked; empty: it was not.
        after: the last round that was recorded under that id; 0: none.
        resumed: how often the run had been resumed when that was recorded.
    """

    folder: Path
    settings: Mapping[str, Scalar]
    tags: Mapping[str, str]
    id: str = ""
    after: int = 0
    resumed: int = 0

    @property
    def name(self) -> str:
        """The run's name, which is its folder's."""
        return self.folder.name


class Tracker(Plugin):
    """A tracker, which records one run elsewhere; derive from it for your own.

    It is made, and all methods are called, in one thread of its own. An exception ends the tracking, never the run.

    Attributes:
        extra: fedappeal's extra that brings what it needs; empty: none.
        needs: modules that it imports, of that extra.
    """

    extra: ClassVar[str] = ""
    needs: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def check_installed(cls) -> None:
        """Check that the tracker's package is installed.

        Raises:
            ConfigError: it is not; says how to install it.
        """
        asked = f"track = '{cls.name}' is not allowed: it needs '{{}}', which is not installed"
        require(asked, cls.extra, *cls.needs)

    def begin(self, run: TrackedRun) -> str:
        """Begin a record, or continue ``run.id``; return the id to continue under, or ''."""
        return ""

    def round(self, number: int, metrics: Mapping[str, float]) -> None:
        """Record a finished round: all numbers of its line in the history, by column."""

    def model(self, path: Path) -> None:
        """Record the finished run's model, a safetensors file."""

    def end(self, how: str) -> None:
        """End the record: the run is ``finished``, ``interrupted`` (it can be continued) or ``failed``."""


TRACKERS = Registry("track", "fedappeal.trackers", Tracker, BUILT_IN["track"])


MakeTracker = Callable[[], Tracker]


def chosen_trackers(choices: Any, settings: Mapping[str, Any]) -> tuple[dict[str, MakeTracker], dict[str, Any]]:
    """Return the trackers' makers by name, and the settings without theirs.

    Args:
        choices: a name, a class or an object, or several.
        settings: of the run, by key; those of plug-ins under ``NAME.KEY``.

    Raises:
        ConfigError: an unknown name or setting, a tracker given twice, or one whose package is not installed.
    """
    makers: dict[str, MakeTracker] = {}
    for choice in choices if isinstance(choices, list | tuple) else [choices]:
        kind = _kind(choice)
        if not re.fullmatch("[a-z0-9]+(-[a-z0-9]+)*", kind.name):
            raise ConfigError(
                f"tracker {kind.__name__} is called '{kind.name}': small letters, digits and '-' are allowed"
            )
        if kind.name in makers:
            raise ConfigError(f"track = '{kind.name}' is given twice")
        kind.check_installed()
        tracker_settings = {key.replace("_", "-"): v for key, v in section(settings, kind.name).items()}
        if not isinstance(choice, Tracker):
            makers[kind.name] = partial(kind, parse_section(kind, tracker_settings))
        elif tracker_settings:
            setting = f"{kind.name}.{next(iter(tracker_settings))}"
            raise ConfigError(f"set = '{setting}' is not allowed: the tracker is an object")
        else:
            makers[kind.name] = partial(lambda tracker: tracker, choice)
    others = {k: v for k, v in settings.items() if k.partition(".")[0] not in makers or "." not in k}
    return makers, others


def _kind(choice: Any) -> type[Tracker]:
    if isinstance(choice, str):
        return TRACKERS.load(choice)
    if isinstance(choice, type) and issubclass(choice, Tracker):
        return choice
    if isinstance(choice, Tracker):
        return type(choice)
    raise ConfigError(f"track = {choice!r} is not allowed: a name, or a fedappeal.views.tracking.tracker.Tracker")
