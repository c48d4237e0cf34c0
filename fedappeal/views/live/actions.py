"""What the operator can do from the live page: stop and resume; else the command that does it."""

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedappeal.federation.remote import RemoteSuperLink, stop_run
from fedappeal.protocol.foreign_text import printable
from fedappeal.record.folder import SUBMITTED
from fedappeal.record.reader import FAILED, INTERRUPTED, RUNNING, WAITING

STOPPED = "stopped"
_RESUME_WAIT = 300.0
_ENDED_EARLY = (FAILED, INTERRUPTED, STOPPED)


class NotDone(RuntimeError):
    """What was asked for was not done; the message is one line."""


class ForeignRun:
    """A run of another process, of which only the folder is seen, and the base of what a page can do to a run."""

    def offers(self, state: str, runtime: str, path: Path | None) -> dict[str, Any]:
        """Return what the page offers: whether it can ``stop`` and ``resume``, and ``commands`` for what it cannot.

        Args:
            state: how the run stands.
            runtime: the kind of runtime in which it was started.
            path: its folder.
        """
        if state in (WAITING, RUNNING):
            if runtime == SUBMITTED:
                stop = {"what": "stop it", "command": "fedappeal federation stop RUN-ID --superlink HOST:8000"}
            else:
                stop = {"what": "stop it: Ctrl-C in the terminal where it was started", "command": ""}
            return _offer(commands=[stop])
        where = " --superlink HOST:8000" if runtime == SUBMITTED else ""
        return _offer(commands=[_command("continue it", path, where)] if state in _ENDED_EARLY else [])

    def stop(self, run_id: int) -> str:
        """Stop a run, 0: the one that is shown; return what was done. Raises NotDone, ControlError."""
        raise NotDone("this run is another process's: stop it where it was started")

    def resume(self, path: Path) -> str:
        """Continue a run; return what was done. Raises NotDone, ControlError."""
        raise NotDone("this run is another process's: continue it with the command that the page shows")


class OwnRun(ForeignRun):
    """The run of this process: it is stopped as by Ctrl-C, and its page ends with it."""

    def offers(self, state: str, runtime: str, path: Path | None) -> dict[str, Any]:
        """As in `ForeignRun`."""
        return _offer(stop=state in (WAITING, RUNNING), commands=[_command("continue it later", path)])

    def stop(self, run_id: int) -> str:
        """As in `ForeignRun`."""
        os.kill(os.getpid(), signal.SIGINT)  # what the terminal does; the main thread ends everything in order
        return "the run is being stopped, and this page with it"

    def resume(self, path: Path) -> str:
        """As in `ForeignRun`."""
        raise NotDone("this run is under way")


@dataclass(frozen=True)
class SubmittedRun(ForeignRun):
    """A run on a long-running SuperLink, to which this machine may submit.

    Attributes:
        superlink: the SuperLink.
        root_certificates: the file of its CA certificate; empty: plaintext.
    """

    superlink: RemoteSuperLink
    root_certificates: str

    def offers(self, state: str, runtime: str, path: Path | None) -> dict[str, Any]:
        """As in `ForeignRun`."""
        resumable = state in _ENDED_EARLY and path is not None
        if resumable and runtime != SUBMITTED:
            return _offer(commands=[_command("continue it", path)])
        return _offer(stop=state in (WAITING, RUNNING), resume=resumable)

    def stop(self, run_id: int) -> str:
        """As in `ForeignRun`."""
        if not run_id:
            raise NotDone("the SuperLink knows no run of this folder")
        stopped = stop_run(self.superlink.address, run_id, root_certificates=self.superlink.root_certificates)
        return f"run {run_id} {'was stopped' if stopped else 'had already ended'}"

    def resume(self, path: Path) -> str:
        """As in `ForeignRun`."""
        command = [sys.executable, "-P", "-m", "fedappeal.cli.main", "resume", str(path), "--detach"]
        command += ["--superlink", self.superlink.address]
        command += ["--root-certificates", self.root_certificates] if self.root_certificates else []
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_RESUME_WAIT, check=False)
        except subprocess.TimeoutExpired:
            raise NotDone(f"nothing was heard of it for {_RESUME_WAIT:g} s: {shlex.join(command[3:])}") from None
        said = (done.stdout if done.returncode == 0 else done.stderr or done.stdout).strip().splitlines()
        last = printable(said[-1]) if said else f"exit code {done.returncode}"
        if done.returncode != 0:
            raise NotDone(last)
        return f"it continues as run {last}"


def _offer(stop: bool = False, resume: bool = False, commands: Sequence[dict[str, str]] = ()) -> dict[str, Any]:
    return {"stop": stop, "resume": resume, "commands": list(commands)}


def _command(what: str, path: Path | None, more: str = "") -> dict[str, str]:
    return {"what": what, "command": printable(f"fedappeal resume {shlex.quote(str(path))}{more}")}
