"""The runs of a SuperLink: which there are, what each is, and how it is doing."""

from dataclasses import dataclass

from fedappeal.federation.listed import Listed
from fedappeal.flower.control import control
from fedappeal.settings.config import RunConfig, Scalar

TOLD = ("strategy", "task", "out")
"""Settings that a run is submitted with beside its bundle: the SuperLink lists those, and not what a bundle holds."""


@dataclass(frozen=True)
class Run(Listed):
    """A run as the SuperLink knows it.

    Attributes:
        run_id: the SuperLink's number of it.
        status: ``pending``, ``starting``, ``running``, ``completed``, ``failed`` or ``stopped``.
        strategy: its strategy; empty: it was not submitted by fedappeal.
        task: its task; empty as above.
        started: when it was submitted, ISO 8601.
        ended: when it ended; empty: it has not.
        folder: its folder as the SuperLink sees it; empty where that is not known.
    """

    run_id: int
    status: str
    strategy: str
    task: str
    started: str
    ended: str
    folder: str


def told(config: RunConfig) -> dict[str, Scalar]:
    """Return the settings that a run is submitted with beside its bundle."""
    settings = config.as_config()
    return {key: settings[key] for key in TOLD}


def list_runs(superlink: str, root_certificates: bytes | None = None) -> list[Run]:
    """Return all runs that the SuperLink knows, in the order in which they were submitted.

    Raises:
        ControlError: if it is not reachable or refuses.
    """
    with control(superlink, root_certificates) as api:
        return [
            Run(
                each.run_id,
                each.status.sub_status if each.status.finished else each.status.status,
                str(each.overrides.get("strategy", "")),
                str(each.overrides.get("task", "")),
                each.started,
                each.ended,
                str(each.overrides.get("out", "")),
            )
            for each in api.runs()
        ]
