"""What the operator can do from the live page: stop and resume; else the command that does it."""

import os
import shlex
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedappeal.core.plugins import allow_options
from fedappeal.federation.remote import NotDone as NotDone
from fedappeal.federation.remote import RemoteSuperLink
from fedappeal.flower.control import ControlError
from fedappeal.protocol.foreign_text import printable
from fedappeal.record.folder import SUBMITTED
from fedappeal.record.reader import FAILED, FINISHED, INTERRUPTED, RUNNING, WAITING
from fedappeal.views.live.settings_file import run_options, settings_files

STOPPED = "stopped"
_NOTHING: Mapping[str, Any] = {"stop": False, "resume": False, "extend": False, "commands": (), "files": ()}
_ENDED_EARLY = (FAILED, INTERRUPTED, STOPPED)


class ForeignRun:
    """Another process's run, seen by its folder; base of a page's actions."""

    def offers(self, state: str, runtime: str, path: Path | None) -> dict[str, Any]:
        """Return the page's offers by name.

        ``stop``, ``resume``, ``extend``, ``files`` to start runs from, ``commands``.

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
            return {**_NOTHING, "commands": [stop]}
        where = " --superlink HOST:8000" if runtime == SUBMITTED else ""
        commands = [_command("continue it", path, where)] if state in _ENDED_EARLY else []
        return {**_NOTHING, "commands": commands}

    def stop(self, run_id: int) -> str:
        """Stop a run, 0 for the shown one; return a confirmation.

        Raises NotDone.
        """
        raise NotDone("this run is another process's: stop it where it was started")

    def resume(self, path: Path, rounds: int = 0) -> str:
        """Continue a run, to another total of rounds if not 0; return a confirmation.

        Raises as `stop`.
        """
        raise NotDone("this run is another process's: continue it with the command that the page shows")

    def start(self, file: str) -> str:
        """Start a run from a settings file; return a confirmation.

        Raises as `stop`, and ConfigError.
        """
        raise NotDone("no run is started from this page: `fedappeal superlink --page PORT --runs FOLDER` allows it")


class OwnRun(ForeignRun):
    """This process's run, stopped as by Ctrl-C; its page ends with it."""

    def offers(self, state: str, runtime: str, path: Path | None) -> dict[str, Any]:
        """Return the buttons and commands that the page of this process's run shows."""
        return {**_NOTHING, "stop": state in (WAITING, RUNNING), "commands": [_command("continue it later", path)]}

    def stop(self, run_id: int) -> str:
        """Interrupt this process, and so its run and this page; return a confirmation."""
        os.kill(os.getpid(), signal.SIGINT)  # what the terminal does; the main thread ends everything in order
        return "the run is being stopped, and this page with it"

    def resume(self, path: Path, rounds: int = 0) -> str:
        """Refuse: the run is under way."""
        raise NotDone("this run is under way")


@dataclass(frozen=True)
class SubmittedRun(ForeignRun):
    """A run on a long-running SuperLink, to which this machine may submit.

    Attributes:
        superlink: the SuperLink.
        runs: folder of settings files with which runs can be started, and of these runs; None: none can.
        allow: packages whose code runs may name.
    """

    superlink: RemoteSuperLink
    runs: Path | None = None
    allow: tuple[str, ...] = ()

    def offers(self, state: str, runtime: str, path: Path | None) -> dict[str, Any]:
        """Return the buttons, commands and settings files for a SuperLink's run."""
        resumable, offer = state in _ENDED_EARLY and path is not None, {**_NOTHING}
        offer["files"] = settings_files(self.runs)
        if resumable and runtime != SUBMITTED:
            return offer | {"commands": [_command("continue it", path)]}
        extensible = runtime == SUBMITTED and path is not None and (resumable or state == FINISHED)
        return offer | {"stop": state in (WAITING, RUNNING), "resume": resumable, "extend": extensible}

    def stop(self, run_id: int) -> str:
        """Stop a run of the SuperLink; return a confirmation."""
        if not run_id:
            raise NotDone("the SuperLink knows no run of this folder")
        try:
            stopped = self.superlink.stop_run(run_id)
        except ControlError as error:
            raise NotDone(str(error)) from None
        return f"run {run_id} {'was stopped' if stopped else 'had already ended'}"

    def resume(self, path: Path, rounds: int = 0) -> str:
        """Submit the continuation of a run; return a confirmation."""
        more = [*(["--rounds", str(rounds)] if rounds else []), *allow_options(self.allow)]
        return f"it continues as run {self.superlink.submit_detached('resume', str(path), *more)}"

    def start(self, file: str) -> str:
        """Submit a run with a file's settings; return a confirmation."""
        if self.runs is None or file not in settings_files(self.runs):
            return super().start(file)
        options = run_options(self.runs / file, self.runs, self.allow)
        return f"run {self.superlink.submit_detached('submit', *options)} was started"


def _command(what: str, path: Path | None, more: str = "") -> dict[str, str]:
    return {"what": what, "command": printable(f"fedappeal resume {shlex.quote(str(path))}{more}")}
