"""A long-running SuperLink, whose clients come and go: its nodes, its runs, and how a run is followed to its end."""

import shlex
import ssl
import subprocess
import sys
import time
from codecs import BOM_UTF8
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedappeal.flower.bundle import CLIENT_APP, build_fab
from fedappeal.flower.control import LISTED, STOPPED, Control, ControlError, ListedRun
from fedappeal.flower.node.tls import served_certificate, split_address
from fedappeal.protocol.foreign_text import printable
from fedappeal.settings.address import check_address
from fedappeal.settings.config import ConfigError, RunConfig
from fedappeal.settings.model import local_path
from fedappeal.system.validity import Validity

if TYPE_CHECKING:
    from fedappeal.record.follower import WatchedRun

_POLL = 0.2
_STATUS_EVERY = 1.0
_TLS_WITHIN = 3.0
"""Seconds in which it has to show its certificate."""
_LOOK_EVERY = 3600.0
_CONTINUED_WITHIN = 60.0
"""Seconds in which a SuperLink that came back submits the continuation of a run that has failed meanwhile."""
_SUBMITTED_WITHIN = 300.0
PATIENCE = 180.0
"""Seconds without an answer of the SuperLink after which waiting is given up; a restarted one is back sooner."""


class NotDone(ValueError):
    """An action was not carried out; the message is one line."""


@dataclass(frozen=True)
class RemoteSuperLink(Control):
    """A long-running SuperLink, reached by its Control API.

    Attributes:
        ca_file: the certificate's file, as it was given.
    """

    ca_file: str = ""

    @classmethod
    def checked(cls, address: str, root_certificates: str) -> "RemoteSuperLink":
        """Return the SuperLink that a user names.

        Args:
            address: ``HOST:PORT`` of its Control API.
            root_certificates: file of its CA certificate; empty: plaintext.

        Raises:
            ConfigError: if they are not allowed.
        """
        check_address(address, "the SuperLink's Control API")
        return cls(address, read_root_certificates(root_certificates), root_certificates)

    def submit(self, config: RunConfig, clientapp: str = CLIENT_APP) -> int:
        """Start a run and return its id.

        Args:
            config: its settings.
            clientapp: ``module:attribute`` of the ClientApp that stock SuperNodes run.
        """
        settings = config.as_config()
        fab = build_fab(settings, clientapp=clientapp)
        return self.start_run(fab, {key: settings[key] for key in LISTED})

    def submit_detached(self, command: str, *options: str) -> str:
        """Return the id of the run that a command submits, `submit` or `resume`, in a process of its own.

        Raises:
            NotDone: it submits none; with what it says.
        """
        words = [command, *options, "--detach", "--superlink", self.address]
        words += ["--root-certificates", self.ca_file] if self.ca_file else []
        start = [sys.executable, "-P", "-m", "fedappeal.cli.main", *words]
        try:
            done = subprocess.run(start, capture_output=True, text=True, timeout=_SUBMITTED_WITHIN, check=False)
        except subprocess.TimeoutExpired:
            raise NotDone(f"nothing was heard of it for {_SUBMITTED_WITHIN:g} s: {shlex.join(words)}") from None
        output = (done.stdout if done.returncode == 0 else done.stderr or done.stdout).strip().splitlines()
        last = printable(output[-1]) if output else f"exit code {done.returncode}"
        if done.returncode != 0:
            raise NotDone(last)
        return last

    def follow(
        self,
        run_id: int,
        on_status: Callable[[str], None],
        follower: "WatchedRun | None" = None,
        patience: float = PATIENCE,
        on_answer: Callable[[float], None] = lambda seconds: None,
    ) -> str:
        """Wait for a run's end; return why it did not complete, empty if it did.

        A run that the SuperLink continues under another id after it came back is followed there.

        Args:
            run_id: the run.
            on_status: told in a few words how the run is doing, each time that this changes.
            follower: reads the run's folder; None where it cannot be seen from here.
            patience: seconds without an answer of the SuperLink after which to give up.
            on_answer: called when it has answered; it is asked again within that many seconds.

        Raises:
            ControlError: if the SuperLink did not answer for that long, or does not know the run.
        """
        shown, next_status, answered, lost = "", time.monotonic(), time.monotonic(), float("-inf")
        while True:
            status: ListedRun | None = None
            if time.monotonic() >= next_status:
                try:
                    status = self.run_status(run_id)
                    answered, text = time.monotonic(), status.status
                    on_answer(_STATUS_EVERY)
                except ControlError as error:
                    if not error.unreachable or time.monotonic() - answered > patience:
                        raise
                    lost = time.monotonic()
                    text = f"{error}; trying again"
                if text != shown and not (status and status.finished):
                    on_status(text)
                    shown = text
                next_status = time.monotonic() + _STATUS_EVERY
            # Lines are read after the status: what a finished run wrote is all there.
            if follower:
                follower.read(over=bool(status and status.completed))
            if status and status.finished:
                # A SuperLink can be away and back between two looks: the list of runs says so, not a lost answer.
                later = 0 if status.completed else self._later_run(run_id)
                if later:
                    on_status(f"the SuperLink came back, and continues it as run {later}")
                    run_id = later
                elif status.completed or time.monotonic() - lost > _CONTINUED_WITHIN:
                    return _failure(status, follower.failed if follower else "")
            time.sleep(_POLL)

    def _later_run(self, run_id: int) -> int:
        """Return the id of a later run of a run's folder; 0: there is none."""
        runs = self.runs()
        own = next(run for run in runs if run.run_id == run_id)
        later = (run.run_id for run in runs if run.folder == own.folder and run.started > own.started)
        return next(later, 0) if own.folder else 0


def read_root_certificates(path: str) -> bytes | None:
    """Return the content of a CA certificate file; None if no file is named.

    None means plaintext.

    Raises:
        ConfigError: if it cannot be read or is no certificate.
    """
    if not path:
        return None
    file = local_path(path, "root-certificates")
    try:
        content = file.read_bytes().removeprefix(BOM_UTF8)
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=content.decode("ascii"))
    except (ssl.SSLError, ValueError):  # the first is an OSError too
        raise ConfigError(f"root-certificates = '{path}' is not allowed: it holds no certificate in PEM") from None
    except OSError as error:
        raise ConfigError(f"root-certificates = '{path}' is not allowed: {error.strerror or error}") from None
    return content


class ServedCertificate:
    """The dates of the certificate that a SuperLink shows, looked at once an hour.

    Attributes:
        superlink: the SuperLink; None: not known yet.
    """

    def __init__(self, superlink: RemoteSuperLink | None) -> None:
        self.superlink = superlink
        self._validity: Validity | None = None
        self._next_look = 0.0

    def validity(self) -> Validity | None:
        """Return the dates; None in plaintext, or until it has answered."""
        superlink = self.superlink
        if superlink is not None and superlink.root_certificates is not None and time.monotonic() >= self._next_look:
            served = served_certificate(split_address(superlink.address), _TLS_WITHIN)
            self._validity = Validity.of(served) if served else self._validity
            self._next_look = time.monotonic() + (_LOOK_EVERY if served else _TLS_WITHIN)
        return self._validity


def _failure(status: ListedRun, reason: str) -> str:
    if status.completed:
        return ""
    if status.status == STOPPED:
        return "the run was stopped"
    return f"the run {status.status}: {reason or status.details or 'the SuperLink says no more'}"
