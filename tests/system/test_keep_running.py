"""A process beside this one: started again where it ends, ended with this one, and killed where it hangs."""

import itertools
import os
import sys
import time

import psutil
import pytest

from fedappeal.system import keep_running as module
from fedappeal.system.keep_running import keep_running

HANGS = "import os, signal, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)"
FAILS = "import sys, time; sys.stdout.write(f'{time.monotonic()}\\n'); sys.exit(3)"


def until_running(program: str) -> psutil.Process:
    """Return the child process that runs a program, once it does."""
    for _ in range(600):
        for child in psutil.Process().children():
            if child.cmdline()[-1:] == [program] and "fedappeal.system.process_end" not in child.cmdline():
                return child
        time.sleep(0.05)
    raise AssertionError(program)


def test_a_process_that_is_killed_is_started_again_and_one_that_hangs_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SHORTEST", 0.1)
    monkeypatch.setattr(module, "_END", 0.2)
    said: list[str] = []
    with keep_running([sys.executable, "-c", HANGS], os.environ, said.append):
        first = until_running(HANGS)
        first.kill()
        while not said:
            time.sleep(0.01)
        second = until_running(HANGS)
        time.sleep(0.5)  # it ignores SIGTERM by now
    assert said == ["it ended by itself (exit code -9) and is started again"]
    assert (first.pid != second.pid, second.is_running()) == (True, False)


def test_one_that_fails_again_and_again_is_started_ever_more_rarely(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(module, "SHORTEST", 0.5)
    monkeypatch.setattr(module, "LONGEST", 2.0)
    said: list[str] = []
    with keep_running([sys.executable, "-c", FAILS], os.environ, said.append):
        while len(said) < 4:
            time.sleep(0.01)
    assert set(said) == {"it ended by itself (exit code 3) and is started again"}
    started = [float(line) for line in capfd.readouterr().out.splitlines()]
    waits = [later - earlier for earlier, later in itertools.pairwise(started)]
    assert all(wait >= least for wait, least in zip(waits, (0.5, 1.0, 2.0, 2.0), strict=False))
