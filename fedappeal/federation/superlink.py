"""A SuperLink on this machine: Flower's server process on loopback, ended with all that it started."""

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Self

import psutil

from fedappeal.core.plugins import PLUGIN_PATH
from fedappeal.flower.processes import QUIET, port_is_taken
from fedappeal.flower.versions import SUPERNODE_SPEAKS_HTTP, SUPPORTED
from fedappeal.system.files import private_folder, private_log
from fedappeal.system.plain_files import last_line
from fedappeal.system.process_end import end_child, end_with_parent
from fedappeal.system.socket_owner import NotTold, is_told, listener_of

_LOOPBACK = "127.0.0.1"
_SIMULATION = "--simulation"
_READY_WITHIN = 60.0
"""Seconds in which it has to answer."""


class SuperLinkError(RuntimeError):
    """The SuperLink did not start; the message says why."""


class _PortTaken(SuperLinkError):
    """Another user's process listens at a port."""


class SuperLink:
    """A SuperLink process on loopback, for this user's processes alone (`fedappeal.federation.own_superlink`).

    The system picks its ports; `fleet_address` (gRPC), `http_address` and `control_address` (``HOST:PORT``) name them
    after `start`. It is killed, and its ServerApp with it, when the thread that called `start` has ended.

    Args:
        folder: where its log (``superlink.log``) and Flower's files go; made if missing.
        options: of `flower-superlink`; with ``--simulation`` it has no Fleet API. Plaintext is fine on loopback.
        fleet_port: port of the Fleet API; 0: the system picks one.
        http: whether it serves the Fleet API over HTTP, too.
        environment: further environment of the SuperLink and its ServerApp.
    """

    def __init__(
        self,
        folder: Path,
        options: Sequence[str] = ("--insecure",),
        fleet_port: int = 0,
        environment: Mapping[str, str] = MappingProxyType({}),
        *,
        http: bool = False,
    ) -> None:
        self.folder = folder
        self.log_file = folder / "superlink.log"
        self.fleet_address = ""
        self.control_address = ""
        self.http_address = ""
        self._http = http
        self._fleet_port = fleet_port
        self._options = options
        self._environment = environment
        self._process: subprocess.Popen[bytes] | None = None
        self._guarded = False

    @property
    def pid(self) -> int:
        """Process id of the running SuperLink."""
        if self._process is None:
            raise SuperLinkError("the SuperLink was not started")
        return self._process.pid

    @property
    def stock_address(self) -> str:
        """The address for a stock SuperNode of the same Flower."""
        if SUPERNODE_SPEAKS_HTTP and not self._http:
            raise SuperLinkError("stock SuperNodes of this Flower speak HTTP, which this SuperLink does not serve")
        return self.http_address if SUPERNODE_SPEAKS_HTTP else self.fleet_address

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> Self:
        """Start the process and wait until it answers.

        Raises:
            SuperLinkError: if it ends or does not answer in time; names the log and its last line.
        """
        try:
            self._guarded = is_told()
        except NotTold as error:
            raise SuperLinkError(str(error)) from None
        private_folder(self.folder)
        picks_http_port = self._http and not self.http_address  # started again, it is where its clients connect
        # A port that was free a moment ago may be taken by the time the process binds it: pick again then.
        for attempt in range(3):
            fleet, control, http = _free_ports(3)
            fleet = self._fleet_port or fleet
            self.fleet_address, self.control_address = f"{_LOOPBACK}:{fleet}", f"{_LOOPBACK}:{control}"
            if picks_http_port:
                self.http_address = f"{_LOOPBACK}:{http}"
            with private_log(self.log_file) as log:
                start = log.tell()
                self._process = subprocess.Popen(
                    self._command(fleet, control),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env=self._env(),
                    cwd=self.folder,
                    start_new_session=True,
                    preexec_fn=partial(end_with_parent, os.getpid()),
                )
            try:
                self._wait_until_ready(control)
                self._check_listeners()
                return self
            except SuperLinkError as error:
                self.stop()
                with self.log_file.open("rb") as log:
                    log.seek(start)
                    if attempt == 2 or not (isinstance(error, _PortTaken) or port_is_taken(log.read())):
                        raise
        raise AssertionError("unreachable")

    def stop(self, timeout: float = 5.0) -> None:
        """End the process and all that it started, if it has not ended."""
        process, self._process = self._process, None
        if process is None:
            return
        # Flower gives its executor a session of its own: the process group does not reach the ServerApp.
        family = _family(process.pid)
        if process.poll() is None:
            end_child(process, timeout)
        # What is left ends itself when its parent is gone (Flower polls for that every 0.2 s).
        _kill(psutil.wait_procs(family, timeout=1.0)[1])

    def kill(self) -> None:
        """End the process and every process that it started at once; a database outlives that."""
        if self._process is not None and self.alive:
            _kill(_family(self._process.pid))
        self.stop()

    def __enter__(self) -> Self:
        """Start, unless started."""
        return self if self.alive else self.start()

    def __exit__(self, *_: object) -> None:
        """Stop."""
        self.stop()

    def _command(self, fleet: int, control: int) -> list[str]:
        # -P: the current folder may hold files whose names are in the way.
        command = [sys.executable, "-P", "-m", "fedappeal.federation.own_superlink"]
        command += ["--disable-runtime-dependency-installation", "--host", _LOOPBACK, "--port", str(control)]
        if _SIMULATION not in self._options:
            command += ["--fleet-api-address", f"{_LOOPBACK}:{fleet}"]
        if self.http_address:
            command += ["--fleet-http-address", self.http_address]
        return [*command, *self._options]

    def _env(self) -> dict[str, str]:
        scripts = str(_flower_command("flower-superlink").parent)
        home = self.folder / "flower"
        # Flower runs the app that it finds there, and this folder may have come from anywhere.
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(home)
        private_folder(home)
        return {
            **os.environ,
            **QUIET,
            # Its executor is found by name, also where the virtual environment is not activated.
            "PATH": os.pathsep.join((scripts, os.environ.get("PATH", ""))),
            "FLWR_HOME": str(home.resolve()),
            **self._environment,
            **import_paths({**os.environ, **self._environment}),
        }

    def _wait_until_ready(self, control: int) -> None:
        deadline = time.monotonic() + _READY_WITHIN
        while time.monotonic() < deadline:
            if not self.alive:
                log = self.log_file
                raise SuperLinkError(f"the SuperLink ended while starting: {last_line(log)} (see {log})")
            # The HTTP port is bound last, after the Fleet API.
            with socket.socket() as probe:
                probe.settimeout(1.0)
                if probe.connect_ex((_LOOPBACK, control)) == 0:
                    return
            time.sleep(0.05)
        raise SuperLinkError(f"the SuperLink did not answer within {_READY_WITHIN:g} s; see {self.log_file}")

    def _check_listeners(self) -> None:
        """Check that this user's processes listen at the ports.

        Another may have taken one while the SuperLink started.
        """
        fleet = "" if _SIMULATION in self._options else self.fleet_address
        for address in filter(None, (self.control_address, fleet, self.http_address)):
            host, _, port = address.rpartition(":")
            if self._guarded and (uid := listener_of((host, int(port)))) != os.geteuid():
                raise _PortTaken(f"the port {address} is in use by user {uid}")


def _flower_command(name: str) -> Path:
    """Return a command of the Flower that this Python has installed."""
    beside = Path(sys.executable).parent / name
    command = beside if beside.is_file() else shutil.which(name)
    if not command:
        raise SuperLinkError(f"the command {name} was not found: install {SUPPORTED}")
    return Path(command)


def import_paths(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables that put this installation first on the import path.

    The user's own code comes last.

    Args:
        environment: what the process would have without them.
    """
    root = str(Path(__file__).resolve().parents[2])
    inherited = environment.get("PYTHONPATH", "")
    return {
        "PYTHONPATH": os.pathsep.join(part for part in (root, inherited) if part),
        PLUGIN_PATH: environment.get(PLUGIN_PATH) or os.getcwd(),
    }


def _free_ports(count: int) -> list[int]:
    """Return distinct ports of loopback that are free now."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for listener in sockets:
            listener.bind((_LOOPBACK, 0))
        return [listener.getsockname()[1] for listener in sockets]
    finally:
        for listener in sockets:
            listener.close()


def _family(pid: int) -> list[psutil.Process]:
    """Return a process and all its descendants; empty if it has ended."""
    try:
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def _kill(processes: list[psutil.Process]) -> None:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
