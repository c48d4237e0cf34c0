"""One real SuperLink with one real run for all tests of the client; see remote_server.py."""

import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from multiprocessing.connection import Connection as Pipe
from multiprocessing.connection import Listener
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.warm import WarmPopen, warm_superlinks

HERE = Path(__file__).parent
MODEL = np.arange(1000, dtype=np.float32)


class Run:
    """A run whose ServerApp does what it is told."""

    def __init__(self, superlink: Any, folder: Path, version: str, settings: Mapping[str, Any] | None = None) -> None:
        from fedappeal.flower.bundle import build_fab
        from fedappeal.flower.control import Control

        path = str(folder / "socket")
        self._listener = Listener(path)
        given = {"lr": 0.1, "maxfl.server-lr": 0.5, "maxfl.stabilizer": 0.001} if settings is None else settings
        changed = {"lr": 0.5, "maxfl.server-lr": 2.0} if settings is None else {}
        fab = build_fab({"socket": "", **given}, "remote_server:app", version=version)
        self.run_id = Control(superlink.control_address).start_run(fab, {"socket": path, **changed})
        self._pipe: Pipe | None = None

    def tell(self, op: str, **arguments: Any) -> Any:
        if self._pipe is None:
            self._pipe = self._listener.accept()
        self._pipe.send({"op": op, **arguments})
        return None if op == "end" else self._pipe.recv()

    def push(self, node: int, kind: str = "train", model: Any = MODEL, ttl: float = 60.0, **config: Any) -> str:
        return str(self.tell("push", node=node, kind=kind, model=model, config=config, ttl=ttl))

    def pull(self, message: str, deadline: float = 10.0) -> Any:
        return self.tell("pull", message=message, deadline=deadline)

    def ask(self, node: int, **options: Any) -> Any:
        return self.pull(self.push(node, **options))

    def nodes(self) -> list[int]:
        return list(self.tell("nodes"))

    def activated(self, node: int) -> str:
        return str(self.tell("activated", node=node))

    def close(self) -> None:
        self._listener.close()


@pytest.fixture(scope="session")
def superlink(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    from fedappeal.federation.superlink import SuperLink

    path = os.pathsep.join((str(HERE), str(HERE.parents[1])))
    with warm_superlinks():
        running = SuperLink(tmp_path_factory.mktemp("superlink"), environment={"PYTHONPATH": path}).start()
    with running:
        yield running


@pytest.fixture(scope="session")
def run(superlink: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    from fedappeal import __version__

    started = Run(superlink, tmp_path_factory.mktemp("run"), __version__)
    yield started
    started.tell("end")
    started.close()


@pytest.fixture(scope="session")
def foreign_run(superlink: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """A run whose bundle says that it is of another version."""
    started = Run(superlink, tmp_path_factory.mktemp("foreign"), "9.9.9")
    yield started
    started.close()


class Process:
    """A client process and the lines it prints."""

    def __init__(self, superlink: str, state_dir: Path, connect_timeout: float = 0.0) -> None:
        command = [sys.executable, str(HERE / "echo_client.py"), superlink, str(state_dir), str(connect_timeout)]
        path = os.pathsep.join((str(HERE.parents[1]), os.environ.get("PYTHONPATH", "")))
        self._process = WarmPopen(
            command,
            env={**os.environ, "PYTHONPATH": path},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.pid = self._process.pid
        self.lines: list[str] = []
        self._unread: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.lines.append(line.strip())
            self._unread.put(line.strip())

    def wait_for(self, text: str, timeout: float = 20.0) -> str:
        """Return the next printed line that holds the text."""
        end = time.monotonic() + timeout
        while True:
            try:
                line = self._unread.get(timeout=max(0.0, end - time.monotonic()))
            except queue.Empty:
                raise AssertionError(f"'{text}' was not printed: {self.lines}") from None
            if text in line:
                return line

    def connected(self) -> int:
        """Wait until it is connected; return its node id."""
        return int(self.wait_for("connected to").rsplit(" ", 1)[1])

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def exit_code(self, timeout: float = 5.0) -> int:
        return self._process.wait(timeout)

    def kill(self) -> None:
        if self._process.poll() is None:
            self.signal(signal.SIGKILL)
            self._process.wait()


@pytest.fixture
def start_client() -> Iterator[Callable[..., Process]]:
    started: list[Process] = []

    def start(*arguments: Any, **options: Any) -> Process:
        started.append(Process(*arguments, **options))
        return started[-1]

    yield start
    for process in started:
        process.kill()
