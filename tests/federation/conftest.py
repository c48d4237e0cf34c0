"""A long-running SuperLink with TLS, node authentication and a database, and real `fedappeal client` processes."""

import contextlib
import io
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

import pytest

from fedappeal.cli.main import main
from fedappeal.federation.certificates import write_certificates
from fedappeal.federation.superlink import SuperLink
from tests.client.certificates import TLS
from tests.ports import free_port
from tests.warm import WarmPopen, warm_superlinks

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "200"}
FEDAPPEAL = [sys.executable, "-m", "fedappeal.cli.main"]


def wait_until(true: Callable[[], object], timeout: float = 240) -> None:
    deadline = time.monotonic() + timeout
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@dataclass
class Done:
    """What came of a command."""

    code: object
    out: str
    err: str


def run_command(*given: str) -> Done:
    """Run a command in this process."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err), patch.object(sys, "argv", ["fedappeal", *given]):
        try:
            main()
            code: object = 0
        except SystemExit as end:
            code = end.code or 0
    return Done(code, out.getvalue(), err.getvalue())


class Client:
    """A `fedappeal client` process, in its own folder: key, state, log."""

    def __init__(self, command: list[str], log: Path, environment: Mapping[str, str] = ENVIRONMENT) -> None:
        self.log = log
        self._start = log.stat().st_size if log.exists() else 0
        with log.open("ab") as out:
            self.process = WarmPopen(command, env=dict(environment), cwd=ROOT, stdout=out, stderr=subprocess.STDOUT)

    def said(self) -> str:
        return self.log.read_text()[self._start :]

    def wait_for(self, text: str, timeout: float = 240.0) -> str:
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            for line in self.said().splitlines():
                if text in line:
                    return line
            time.sleep(0.05)
        raise AssertionError(f"'{text}' was not printed: {self.said()}")

    def end(self, number: int = signal.SIGTERM) -> int:
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(number)
        return self.process.wait(80)


class Federation:
    """A long-running SuperLink, its certificates, and who connects to it.

    Attributes:
        folder: of everything.
        certs: what `fedappeal certs` made.
        superlink: the SuperLink; its Fleet port stays the same when it is started again.
    """

    def __init__(self, folder: Path, environment: Mapping[str, str] | None = None, *, http: bool = False) -> None:
        self.folder = folder
        self.environment = {**ENVIRONMENT, **(environment or {})}
        self.certs = folder / "certs"
        write_certificates(self.certs, (), ("0", "1", "2", "unknown"), days=100)
        self.superlink = SuperLink(
            folder / "superlink",
            [*TLS(self.certs).options, "--database", str(folder / "state.db")],
            fleet_port=free_port(),
            environment=dict(environment or {}),
            http=http,
        )
        self._clients: list[Client] = []

    def command(self, *arguments: str) -> list[str]:
        where = ["--superlink", self.superlink.control_address, "--root-certificates", str(self.certs / "ca.crt")]
        return [*FEDAPPEAL, *arguments, *where]

    def fedappeal(self, *arguments: str) -> Done:
        """Run a command that talks to the SuperLink's Control API, in this process: Flower is imported already."""
        return self.run(self.command(*arguments)[len(FEDAPPEAL) :])

    def run(self, given: list[str]) -> Done:
        """Run any command in this process."""
        return run_command(*given)

    def key(self, name: str) -> Path:
        return self.certs / "clients" / f"{name}.key"

    def register(self, *names: str) -> Done:
        return self.fedappeal("federation", "register", *(str(self.key(n).with_suffix(".pub")) for n in names))

    def client(self, number: int, *options: str, key: str = "") -> Client:
        """Start a client that plays one of the task's."""
        state = self.folder / "clients" / str(number)
        state.mkdir(parents=True, exist_ok=True)
        given = {
            "--superlink": self.superlink.http_address or self.superlink.fleet_address,
            "--root-certificates": str(self.certs / "ca.crt"),
            "--key": str(self.key(key or str(number))),
            "--partition-id": str(number),
            "--state-dir": str(state),
            "--device": "cpu",
            "--connect-timeout": "0",
        }
        command = [*FEDAPPEAL, "client", *(part for pair in given.items() for part in pair), *options]
        self._clients.append(Client(command, state / "log", self.environment))
        return self._clients[-1]

    def end(self) -> None:
        for client in self._clients:
            if client.process.poll() is None:
                client.end(signal.SIGKILL)
        self.superlink.stop()


@pytest.fixture(scope="module", autouse=True)
def warm() -> Iterator[None]:
    """SuperLinks are forked from a warm process."""
    with warm_superlinks():
        yield


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    running = Federation(tmp_path_factory.mktemp("federation"))
    try:
        running.superlink.start()
        yield running
    finally:
        running.end()
