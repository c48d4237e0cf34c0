"""A SuperLink on this machine: Flower's server process on loopback, ended with all that it started."""

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

from fedappeal.core.plugins import PLUGIN_PATH
from fedappeal.flower.processes import PROMPT, QUIET, port_is_taken
from fedappeal.system.private_files import private_folder, private_log
from fedappeal.system.process_end import end_with_parent
from fedappeal.system.socket_owner import NotTold, is_told, listener_of

_LOOPBACK = "127.0.0.1"


class SuperLinkError(RuntimeError):
    """The SuperLink did not start; the message is for a person to read."""


class _PortTaken(SuperLinkError):
    """Another user's process listens at a port."""


@dataclass(frozen=True)
class TLS:
    """Certificates of a SuperLink (PEM files); one certificate serves all its ports.

    The server's certificate must name ``127.0.0.1``: the SuperLink starts its ServerApp against that address.
    """

    ca: Path
    certificate: Path
    key: Path


class SuperLink:
    """A SuperLink process on loopback, for this user's processes alone (`fedappeal.federation.own_superlink`).

    The system picks its ports; `fleet_address` and `control_address` (``HOST:PORT``) name them after `start`. It is
    killed, and its ServerApp with it, when the thread that called `start` has ended.

    Args:
        folder: where its log (``superlink.log``) and Flower's files go; made if missing.
        database: file in which nodes and runs outlive the process; None: in memory, which is faster.
        tls: certificates; None: plaintext, which is fine on loopback.
        node_auth: admit registered node keys only, of any user (needs ``tls``).
        simulation: Flower's simulation runtime: no Fleet API, virtual clients on Ray.
        fleet_port: port of the Fleet API; 0: the system picks one.
        environment: further environment of the SuperLink and its ServerApp.
        ready_timeout: seconds to wait until it answers.
    """

    def __init__(
        self,
        folder: Path,
        *,
        database: Path | None = None,
        tls: TLS | None = None,
        node_auth: bool = False,
        fleet_port: int = 0,
        simulation: bool = False,
        environment: dict[str, str] | None = None,
        ready_timeout: float = 60.0,
    ) -> None:
        if node_auth and tls is None:
            raise ValueError("node_auth = True is not allowed without tls")
        self.folder = folder
        self.log_file = folder / "superlink.log"
        self.fleet_address = ""
        self.control_address = ""
        self._fleet_port = fleet_port
        self._simulation = simulation
        self._database = database
        self._tls = tls
        self._node_auth = node_auth
        self._environment = environment or {}
        self._ready_timeout = ready_timeout
        self._process: subprocess.Popen[bytes] | None = None
        self._guarded = False

    @property
    def pid(self) -> int:
        """Process id of the running SuperLink."""
        if self._process is None:
            raise SuperLinkError("the SuperLink was not started")
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self._process is not None and self._process.poll() is None

    @property
    def root_certificates(self) -> bytes | None:
        """CA certificate (PEM) for its clients, None without TLS."""
        return self._tls.ca.read_bytes() if self._tls else None

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
        # A port that was free a moment ago may be taken by the time the process binds it: pick again then.
        for attempt in range(3):
            fleet, control = _free_ports(2)
            fleet = self._fleet_port or fleet
            self.fleet_address, self.control_address = f"{_LOOPBACK}:{fleet}", f"{_LOOPBACK}:{control}"
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
        """End the process and every process that it started; at once where it has ended already."""
        process, self._process = self._process, None
        if process is None:
            return
        # Flower gives its executor a session of its own: the process group does not reach the ServerApp.
        family = _family(process.pid)
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(timeout)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
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

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop."""
        self.stop()

    def _command(self, fleet: int, control: int) -> list[str]:
        # -P: the current folder may hold files whose names are in the way.
        command = [sys.executable, "-P", "-m", "fedappeal.federation.own_superlink"]
        command.append("--disable-runtime-dependency-installation")
        if self._simulation:
            command.append("--simulation")
        else:
            command += ["--fleet-api-address", f"{_LOOPBACK}:{fleet}"]
        command += ["--host", _LOOPBACK, "--port", str(control)]
        if self._tls is None:
            command.append("--insecure")
        else:
            command += ["--ssl-ca-certfile", str(self._tls.ca.resolve())]
            command += ["--ssl-certfile", str(self._tls.certificate.resolve())]
            command += ["--ssl-keyfile", str(self._tls.key.resolve())]
        if self._node_auth:
            command.append("--enable-supernode-auth")
        if self._database is not None:
            command += ["--database", str(self._database.resolve())]
        return command

    def _env(self) -> dict[str, str]:
        scripts = str(_flower_command("flower-superlink").parent)
        home = self.folder / "flower"
        private_folder(home)
        return {
            **os.environ,
            **QUIET,
            **PROMPT,
            # Its executor is found by name, also where the virtual environment is not activated.
            "PATH": os.pathsep.join((scripts, os.environ.get("PATH", ""))),
            "FLWR_HOME": str(home.resolve()),
            **self._environment,
            **import_paths({**os.environ, **self._environment}),
        }

    def _wait_until_ready(self, control: int) -> None:
        deadline = time.monotonic() + self._ready_timeout
        while time.monotonic() < deadline:
            if not self.alive:
                raise SuperLinkError(f"the SuperLink ended while starting: {self._last_line()}")
            # The HTTP port is bound last, after the Fleet API.
            with socket.socket() as probe:
                probe.settimeout(1.0)
                if probe.connect_ex((_LOOPBACK, control)) == 0:
                    return
            time.sleep(0.05)
        raise SuperLinkError(f"the SuperLink did not answer within {self._ready_timeout:g} s; see {self.log_file}")

    def _check_listeners(self) -> None:
        """Check that the ports are this user's: another may have taken one while the SuperLink started."""
        for address in (self.control_address,) if self._simulation else (self.control_address, self.fleet_address):
            host, _, port = address.rpartition(":")
            if self._guarded and (uid := listener_of((host, int(port)))) != os.geteuid():
                raise _PortTaken(f"the port {address} is in use by user {uid}")

    def _last_line(self) -> str:
        lines = self.log_file.read_text(errors="replace").split("\n")
        return f"{next((line.strip() for line in reversed(lines) if line.strip()), '')} (see {self.log_file})"


def _flower_command(name: str) -> Path:
    """Return a command of the Flower that this Python has installed."""
    beside = Path(sys.executable).parent / name
    command = beside if beside.is_file() else shutil.which(name)
    if not command:
        raise SuperLinkError(f"the command {name} was not found: install flwr>=1.39,<1.40")
    return Path(command)


def import_paths(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables by which a process finds this very installation first, and the user's own code last.

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
    """Return a process and all processes below it, at any depth; empty where it has ended."""
    try:
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def _kill(processes: list[psutil.Process]) -> None:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
