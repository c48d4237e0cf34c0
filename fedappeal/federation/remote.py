"""Runs on a long-running SuperLink, whose clients come and go: submitted, and followed to their end."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from fedappeal.federation.submit import run_status, submit
from fedappeal.flower.bundle import CLIENT_APP, build_fab
from fedappeal.flower.control import LISTED, ControlError, RunStatus
from fedappeal.record.follower import WatchedRun
from fedappeal.settings.config import RunConfig

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
        said, next_status, answered = "", time.monotonic(), time.monotonic()
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
                if text != said and not (status and status.finished):
                    on_status(text)
                    said = text
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
