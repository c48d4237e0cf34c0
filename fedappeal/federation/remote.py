"""Runs on a long-running SuperLink, whose clients come and go: submitted, and followed to their end."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from fedappeal.flower.bundle import CLIENT_APP, build_fab
from fedappeal.flower.control import LISTED, ControlError, Run, RunStatus, control
from fedappeal.record.follower import WatchedRun
from fedappeal.settings.config import RunConfig, Scalar

_POLL = 0.2
_STATUS_EVERY = 1.0
PATIENCE = 180.0
"""Seconds without an answer of the SuperLink after which waiting is given up; a restarted one is back sooner."""


@dataclass(frozen=True)
class Ended:
    """How a run ended.

    Attributes:
        completed: whether it ended well.
        reason: why not, one line; empty where it did.
    """

    completed: bool
    reason: str


@dataclass(frozen=True)
class RemoteSuperLink:
    """A long-running SuperLink, by its Control API.

    Attributes:
        address: ``HOST:PORT``.
        root_certificates: CA certificate (PEM) where it uses TLS; None: plaintext.
    """

    address: str
    root_certificates: bytes | None = None

    def submit(self, config: RunConfig, clientapp: str = CLIENT_APP) -> int:
        """Start a run and return its id.

        Args:
            config: its settings.
            clientapp: ``module:attribute`` of the ClientApp that stock SuperNodes run.

        Raises:
            ControlError: if the SuperLink is not reachable or refuses.
        """
        settings = config.as_config()
        listed = {key: settings[key] for key in LISTED}
        fab = build_fab(settings, clientapp=clientapp)
        return submit(self.address, fab, listed, root_certificates=self.root_certificates)

    def follow(
        self,
        run_id: int,
        on_status: Callable[[str], None],
        follower: WatchedRun | None = None,
        patience: float = PATIENCE,
        on_answer: Callable[[float], None] = lambda seconds: None,
    ) -> Ended:
        """Wait until a run has ended.

        Args:
            run_id: the run.
            on_status: told in a few words how the run is doing, each time that this changes.
            follower: reads the run's folder; None where it cannot be seen from here.
            patience: seconds without an answer of the SuperLink after which to give up.
            on_answer: called when it has answered; it is asked again within that many seconds.

        Raises:
            ControlError: if the SuperLink did not answer for that long, or does not know the run.
        """
        shown, next_status, answered = "", time.monotonic(), time.monotonic()
        while True:
            status: RunStatus | None = None
            if time.monotonic() >= next_status:
                try:
                    status = run_status(self.address, run_id, root_certificates=self.root_certificates)
                    answered, text = time.monotonic(), status.status
                    on_answer(_STATUS_EVERY)
                except ControlError as error:
                    if not error.unreachable or time.monotonic() - answered > patience:
                        raise
                    text = f"{error}; trying again"
                if text != shown and not (status and status.finished):
                    on_status(text)
                    shown = text
                next_status = time.monotonic() + _STATUS_EVERY
            # Lines are read after the status: what a finished run wrote is all there.
            if follower:
                follower.read()
            if status and status.finished:
                return _ended(status, follower.failed if follower else "")
            time.sleep(_POLL)


def _ended(status: RunStatus, reason: str) -> Ended:
    if status.completed:
        return Ended(True, "")
    if status.stopped:
        return Ended(False, "the run was stopped")
    return Ended(False, f"the run {status.sub_status}: {reason or status.details or 'the SuperLink says no more'}")


def submit(
    control_address: str,
    fab: bytes,
    override_config: Mapping[str, Scalar] | None = None,
    *,
    root_certificates: bytes | None = None,
) -> int:
    """Start a run.

    Args:
        control_address: ``HOST:PORT`` of the SuperLink's Control API (HTTP).
        fab: the bundle, see `fedappeal.flower.bundle.build_fab`.
        override_config: settings that differ from the bundle's; the keys must exist there.
        root_certificates: CA certificate (PEM) where the SuperLink uses TLS; None: plaintext.

    Returns:
        The run's id.

    Raises:
        ControlError: if the SuperLink is not reachable or refuses.
    """
    with control(control_address, root_certificates) as superlink:
        return superlink.start_run(fab, override_config or {})


def list_runs(control_address: str, root_certificates: bytes | None = None) -> list[Run]:
    """Return all runs in the order in which they were submitted; arguments and errors as in `submit`."""
    with control(control_address, root_certificates) as superlink:
        return superlink.runs()


def run_status(control_address: str, run_id: int, *, root_certificates: bytes | None = None) -> RunStatus:
    """Return how a run is doing; arguments and errors as in `submit`."""
    with control(control_address, root_certificates) as superlink:
        return superlink.run_status(run_id)


def stop_run(control_address: str, run_id: int, *, root_certificates: bytes | None = None) -> bool:
    """Stop a run; False if it had already ended. Arguments and errors as in `submit`."""
    with control(control_address, root_certificates) as superlink:
        return not superlink.run_status(run_id).finished and superlink.stop_run(run_id)
