"""Real processes: started with a mark in their environment, so that a test can see that none is left."""

import contextlib
import os
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from tests.warm import IMPORT_PATH, MARK, WarmPopen
from tests.warm import run as warm_run

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent


def each(processes: Iterable[psutil.Process], act: Callable[[psutil.Process], None]) -> None:
    """Do something to each process; one that has ended by itself meanwhile is left out."""
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            act(process)


@dataclass
class Marked:
    """Starts commands whose processes, and those they start, carry a mark: in the environment, or a file."""

    home: Path
    mark: str = field(default_factory=lambda: uuid.uuid4().hex)

    @property
    def env(self) -> dict[str, str]:
        return {
            **os.environ,
            MARK: self.mark,
            "PATH": os.pathsep.join((str(BIN), os.environ["PATH"])),
            "FLWR_HOME": str(self.home),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "PYTHONPATH": IMPORT_PATH,
            "COLUMNS": "200",
        }

    def run(
        self, *command: str, timeout: float = 200, cwd: Path = ROOT, warm: bool = False
    ) -> subprocess.CompletedProcess[str]:
        run = warm_run if warm else subprocess.run
        return run(command, env=self.env, cwd=cwd, capture_output=True, text=True, timeout=timeout, check=False)

    def start(
        self, *command: str, log: Path, env: dict[str, str] | None = None, cwd: Path = ROOT, warm: bool = False
    ) -> "subprocess.Popen[bytes]":
        with log.open("wb") as out:
            return (WarmPopen if warm else subprocess.Popen)(
                command,
                env={**self.env, **(env or {})},
                cwd=cwd,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def alive(self) -> list[psutil.Process]:
        """Return the processes that carry the mark and have not ended."""
        found = []
        for process in psutil.process_iter(["name"]):  # their names stay known when they have ended
            try:
                if self._marks(process) and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
            except (psutil.Error, OSError):
                continue
        return found

    def end_executors(self) -> None:
        """End the executors that stock SuperNodes have left: one may be started while its SuperNode ends."""
        executors = [process for process in self.alive() if process.name() == "flwr-clientapp"]
        each(executors, psutil.Process.terminate)
        psutil.wait_procs(executors, timeout=80)

    def _marks(self, process: psutil.Process) -> bool:
        files = Path(f"/proc/{process.pid}/fd")
        return process.environ().get(MARK) == self.mark or any(
            self.mark in os.readlink(files / number) for number in os.listdir(files)
        )


@pytest.fixture
def marked(tmp_path: Path) -> Iterator[Marked]:
    processes = Marked(tmp_path / "flower-home")
    yield processes
    # Flower's executors notice within seconds that their parent is gone.
    psutil.wait_procs(processes.alive(), timeout=240)
    left = processes.alive()
    each(left, psutil.Process.kill)
    assert not left, f"processes left behind: {left}"
