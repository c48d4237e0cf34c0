"""Trackers for tests: one that keeps what it is told, and some that misbehave."""

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from pydantic import Field

from fedappeal.core.plugins import PluginSettings
from fedappeal.views.tracking.tracker import TrackedRun, Tracker


class Kept(Tracker):
    """Keeps all that it is told, in one list for all objects."""

    name = "kept"
    told: ClassVar[list[tuple[object, ...]]] = []

    class Settings(PluginSettings):
        size: int = Field(1, ge=1, description="a number")

    def begin(self, run: TrackedRun) -> str:
        self.told.append(("begin", run))
        return run.id or f"id-of-{run.name}"

    def round(self, number: int, metrics: Mapping[str, float]) -> None:
        self.told.append(("round", number, dict(metrics)))

    def model(self, path: Path) -> None:
        self.told.append(("model", path))

    def end(self, how: str) -> None:
        self.told.append(("end", how))

    @classmethod
    def of(cls, kind: str) -> list[tuple[object, ...]]:
        """What was told of one kind."""
        return [each[1:] for each in cls.told if each[0] == kind]


class Raising(Tracker):
    """Raises in the method that its setting names."""

    name = "raising"

    class Settings(PluginSettings):
        method: str = ""

    def _in(self, method: str) -> None:
        if self.settings.method == method:
            raise SystemExit(f"no {method}\nhere")

    def begin(self, run: TrackedRun) -> str:
        self._in("begin")
        return ""

    def round(self, number: int, metrics: Mapping[str, float]) -> None:
        self._in("round")

    def model(self, path: Path) -> None:
        self._in("model")

    def end(self, how: str) -> None:
        self._in("end")


class Hanging(Tracker):
    """Waits in `begin` until the test lets it go."""

    name = "hanging"
    go: ClassVar[threading.Event] = threading.Event()

    def begin(self, run: TrackedRun) -> str:
        self.go.wait(60)
        return ""
