"""What looks on while a command runs a federation: trackers, the port with metrics, a health check."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedappeal.cli.options import plugin_options
from fedappeal.settings.config import ConfigError
from fedappeal.views.metrics.serving import NOWHERE, CountConnected, MetricsPort
from fedappeal.views.terminal.shown import complain
from fedappeal.views.tracking.following import tracked
from fedappeal.views.tracking.registry import MakeTracker, chosen_trackers


@dataclass(frozen=True)
class Observers:
    """What looks on.

    Attributes:
        trackers: make the trackers of a run.
        metrics: where its metrics are served.
        alive: told of signs of life, and for how many seconds each is good.
    """

    trackers: tuple[MakeTracker, ...] = ()
    metrics: MetricsPort = NOWHERE
    alive: Callable[[float], None] = lambda seconds: None

    @contextmanager
    def watch(self, folder: Path, connected: CountConnected | None = None) -> Iterator[None]:
        """Look on at one run while the block runs it.

        Args:
            folder: the run's.
            connected: counts the connected clients; None: the run has no connections.
        """

        def registry() -> Any:
            from fedappeal.views.metrics.folder import FolderMetrics

            return FolderMetrics(folder, connected)

        with self.metrics.served(registry), tracked(folder, self.trackers, complain):
            yield


NONE = Observers()


def chosen_observers(
    track: Sequence[str], metrics: MetricsPort, settings: dict[str, Any]
) -> tuple[Observers, dict[str, Any]]:
    """Return what looks on, and the settings without those of trackers; errors as `chosen_trackers`."""
    trackers, rest = chosen_trackers(track, settings)
    return Observers(trackers, metrics), rest


def observers_to_resume(track: Sequence[str], given: Sequence[str], metrics: MetricsPort) -> Observers:
    """Return what looks on at a run that continues.

    Args:
        track: names of trackers.
        given: their settings, ``NAME.KEY=VALUE``.
        metrics: where metrics are served.

    Raises:
        ConfigError: a name or setting that is not allowed, or a setting of something else.
    """
    observers, others = chosen_observers(track, metrics, dict(plugin_options(given)))
    if others:
        raise ConfigError(
            f"set = '{next(iter(others))}' is not allowed: a run continues with its settings; those of trackers "
            "that --track names can be given"
        )
    return observers
