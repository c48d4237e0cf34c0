"""What a tracker is: the interface that TensorBoard, MLflow, W&B and trackers of others implement."""

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from fedappeal.core.plugins import Plugin
from fedappeal.settings.config import ConfigError, Scalar


@dataclass(frozen=True)
class TrackedRun:
    """A run, as a tracker is told of it.

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
        """What the run is called: its folder's name."""
        return self.folder.name


class Tracker(Plugin):
    """Records one run elsewhere; derive from it, and override what you need.

    It is made, and all methods are called, in one thread of its own. An exception ends the tracking, never the run.

    Attributes:
        extra: fedappeal's extra that brings what it needs; empty: none.
        needs: modules that it imports, of that extra.
    """

    extra: ClassVar[str] = ""
    needs: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def check_installed(cls) -> None:
        """Check that what it needs is installed.

        Raises:
            ConfigError: it is not; says how to install it.
        """
        for module in cls.needs:
            if not _is_installed(module):
                raise ConfigError(
                    f"track = '{cls.name}' is not allowed: it needs '{module}', which is not installed: "
                    f"pip install 'fedappeal[{cls.extra}]'"
                )

    def begin(self, run: TrackedRun) -> str:
        """Begin, or continue where ``run.id`` is given; return the id to continue under, empty: none."""
        return ""

    def round(self, number: int, metrics: Mapping[str, float]) -> None:
        """Record a finished round: all numbers of its line in the history, by column."""

    def model(self, path: Path) -> None:
        """Record the finished run's model, a safetensors file."""

    def end(self, how: str) -> None:
        """End: the run is ``finished``, ``interrupted`` (it can be continued) or ``failed``."""


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # the package that it is in
        return False
