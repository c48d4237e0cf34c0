"""Promise: whenever the command is killed, nothing stays alive, and `resume` continues as if nothing had been."""

import fcntl
import os
import pty
import random
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fedappeal.record.lines import HISTORY
from fedappeal.record.reader import Record

ROOT = Path(__file__).resolve().parents[2]
FEDAPPEAL = [sys.executable, "-m", "fedappeal.cli.main"]
GONE_WITHIN = 10.0
"""Seconds after which nothing may be alive; measured on a machine with ten times the work it can do: 0.1 to 1.4."""
CLIENTS = 2


class Command:
    """A command in a terminal of its own, its processes known by a mark in their environment."""

    def __init__(self, *arguments: str) -> None:
        self.mark = f"FEDAPPEAL_KILLED={os.getpid()}-{time.monotonic_ns()}"
        name, _, value = self.mark.partition("=")
        self.master, terminal = pty.openpty()
        self.process = subprocess.Popen(
            [*FEDAPPEAL, *arguments],
            env={**os.environ, "PYTHONPATH": str(ROOT), name: value},
            stdin=terminal,
            stdout=terminal,
            stderr=terminal,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(terminal)
        self._open = True

    def alive(self) -> list[str]:
        """The command lines of all of its processes."""
        found = []
        for environ in Path("/proc").glob("[0-9]*/environ"):
            try:
                if self.mark.encode() in environ.read_bytes().split(b"\0"):
                    found.append((environ.parent / "cmdline").read_bytes().replace(b"\0", b" ").decode())
            except OSError:  # it has ended
                continue
        return found

    def wait_for(self, happened: Callable[[], bool], seconds: float = 300.0) -> str:
        """Wait until something has happened; the terminal is read meanwhile. Return what was said."""
        until = time.monotonic() + seconds
        os.set_blocking(self.master, False)
        said = b""
        while not happened():
            try:
                said += os.read(self.master, 65536)
            except OSError:
                time.sleep(0.02)
            assert time.monotonic() < until, said.decode(errors="replace")[-2000:]
        return said.decode(errors="replace")

    def close_terminal(self) -> None:
        """Do what closing its window does."""
        if self._open:
            os.close(self.master)
        self._open = False

    def kill(self) -> None:
        """Kill the command, and nothing else."""
        self.process.send_signal(signal.SIGKILL)

    def check_gone(self) -> None:
        """Fail where a process is alive after `GONE_WITHIN`."""
        until = time.monotonic() + GONE_WITHIN
        self.process.wait(GONE_WITHIN)
        while left := self.alive():
            assert time.monotonic() < until, left
            time.sleep(0.02)


@pytest.fixture
def commands() -> Iterator[Callable[..., Command]]:
    started: list[Command] = []

    def start(*arguments: str) -> Command:
        started.append(Command(*arguments))
        return started[-1]

    yield start
    for command in started:
        command.kill()
        command.process.wait()
        command.close_terminal()


def rounds(folder: Path) -> list[int]:
    return [line["round"] for line in Record(folder).history]


def test_a_local_run_survives_a_closed_terminal_and_kills(commands: Callable[..., Command], tmp_path: Path) -> None:
    folder, draw = tmp_path / "run", random.Random(0)
    options = f"--clients {CLIENTS} --rounds 20 --local-steps 50 --participation always".split()
    first = commands("local", *options, "--out", str(folder))
    first.wait_for(lambda: len(rounds(folder)) >= 2)
    assert len(first.alive()) >= CLIENTS + 4, "the command, the clients and their parent, SuperLink, ServerApp"
    first.close_terminal()
    first.check_gone()
    assert Record(folder).events[-1]["event"] == "interrupted"

    # At once, and killed at once, while everything is starting.
    starting = commands("resume", str(folder))
    time.sleep(draw.uniform(0.5, 5.0))
    starting.kill()
    starting.check_gone()

    # In the midst of a round.
    before = len(rounds(folder))
    second = commands("resume", str(folder))
    second.wait_for(lambda: len(rounds(folder)) > before)
    time.sleep(draw.uniform(0.0, 1.0))
    second.kill()
    second.check_gone()

    last = commands("resume", str(folder))
    said = last.wait_for(lambda: last.process.poll() is not None)
    assert last.process.returncode == 0, said
    last.check_gone()
    history = Record(folder).history
    assert [line["round"] for line in history] == list(range(1, 21))
    assert [line["joined"] for line in history] == [CLIENTS] * 20
    assert [line.get("failures", {}) for line in history] == [{}] * 20


@pytest.mark.parametrize("end", [Command.kill, Command.close_terminal])
def test_simulations_in_processes_end_with_their_command(
    commands: Callable[..., Command], tmp_path: Path, end: Callable[[Command], None]
) -> None:
    folder = tmp_path / "runs"
    many = ["--clients", "4", "--rounds", "100000", "--sweep", "seed=0,1", "--jobs", "2"]
    command = commands("simulate", *many, "--out", str(folder))
    command.wait_for(lambda: len(list(folder.glob(f"*/{HISTORY}"))) == 2)
    assert len(command.alive()) >= 3
    end(command)
    command.check_gone()


def test_a_simulated_run_loses_no_round_with_its_terminal(commands: Callable[..., Command], tmp_path: Path) -> None:
    folder = tmp_path / "run"
    command = commands("simulate", "--clients", "4", "--rounds", "100000", "--out", str(folder))
    command.wait_for(lambda: len(rounds(folder)) >= 3)
    command.close_terminal()
    command.check_gone()
    done = rounds(folder)
    assert done == list(range(1, len(done) + 1))
    more = str(len(done) + 2)
    again = commands("resume", str(folder), "--rounds", more)
    again.wait_for(lambda: again.process.poll() is not None)
    assert again.process.returncode == 0
    assert rounds(folder) == list(range(1, len(done) + 3))
