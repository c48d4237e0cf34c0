"""The trackers that come with fedappeal, and those that a run's user chose, by name, class or object."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from fedappeal.core.plugins import Registry, parse_section
from fedappeal.settings.config import ConfigError, Scalar, section
from fedappeal.views.tracking.tracker import Tracker

TRACKERS = Registry(
    "track",
    "fedappeal.trackers",
    Tracker,
    {
        "tensorboard": "fedappeal.views.tracking.tensorboard:TensorBoard",
        "mlflow": "fedappeal.views.tracking.mlflow:MLflow",
        "wandb": "fedappeal.views.tracking.wandb:WandB",
    },
)


class MakeTracker(Protocol):
    """Makes a tracker, whose name it knows before."""

    @property
    def name(self) -> str:
        """The tracker's."""

    def __call__(self) -> Tracker:
        """Return the tracker."""


@dataclass(frozen=True)
class _Chosen:
    """A tracker that a user chose."""

    name: str
    make: Callable[[], Tracker]

    def __call__(self) -> Tracker:
        return self.make()


def chosen_trackers(
    named: Iterable[Any], settings: Mapping[str, Any]
) -> tuple[tuple[MakeTracker, ...], dict[str, Any]]:
    """Return what makes each tracker, and the settings without those of trackers.

    Args:
        named: names, classes and objects.
        settings: of the run, by key; those of plug-ins under ``NAME.KEY``.

    Raises:
        ConfigError: an unknown name or setting, a tracker given twice, or one whose package is not installed.
    """
    makers: dict[str, MakeTracker] = {}
    for each in named:
        kind = _kind(each)
        if not re.fullmatch("[a-z0-9]+(-[a-z0-9]+)*", kind.name):
            raise ConfigError(
                f"tracker {kind.__name__} is called '{kind.name}': small letters, digits and '-' are allowed"
            )
        if kind.name in makers:
            raise ConfigError(f"track = '{kind.name}' is given twice")
        kind.check_installed()
        own: dict[str, Scalar] = {key.replace("_", "-"): v for key, v in section(settings, kind.name).items()}
        if isinstance(each, Tracker):
            if own:
                raise ConfigError(f"set = '{kind.name}.{next(iter(own))}' is not allowed: the tracker is an object")
            makers[kind.name] = _Chosen(kind.name, partial(_itself, each))
        else:
            makers[kind.name] = _Chosen(kind.name, partial(kind, parse_section(kind, own)))
    return tuple(makers.values()), {
        k: v for k, v in settings.items() if k.partition(".")[0] not in makers or "." not in k
    }


def several(given: Any) -> Sequence[Any]:
    """Return trackers of which one may be given alone, as a list."""
    return given if isinstance(given, list | tuple) else [given]


def _kind(given: Any) -> type[Tracker]:
    if isinstance(given, str):
        return TRACKERS.load(given)
    if isinstance(given, type) and issubclass(given, Tracker):
        return given
    if isinstance(given, Tracker):
        return type(given)
    raise ConfigError(f"track = {given!r} is not allowed: a name, or a fedappeal.views.tracking.tracker.Tracker")


def _itself(tracker: Tracker) -> Tracker:
    return tracker
