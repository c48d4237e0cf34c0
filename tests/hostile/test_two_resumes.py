"""Promise: of two `fedappeal resume` of one run at once, one goes on, and the other says so in one line."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fedappeal.record.reader import Record
from tests.soak.kills import check_tidy

ROOT = Path(__file__).resolve().parents[2]
SMALL = "--task digits --model logistic --clients 2 --local-steps 300 --participation always"
WITHIN = 180.0
Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start() -> Iterator[Start]:
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "fedappeal.cli.main", *arguments],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()


def wait_for(happened: Callable[[], bool], what: str) -> None:
    until = time.monotonic() + WITHIN
    while not happened():
        assert time.monotonic() < until, what
        time.sleep(0.1)


@pytest.mark.parametrize("kind", ["simulate", "local"])
def test_one_of_two_goes_on_and_the_other_says_one_line(kind: str, start: Start, tmp_path: Path) -> None:
    path = tmp_path / "run"

    def rounds() -> int:
        return Record(path).snapshot.last_round

    first = start(kind, *SMALL.split(), "--rounds", "100000", "--page", "0", "--out", str(path))
    wait_for(lambda: rounds() >= 2, "the first two rounds")
    first.kill()
    first.communicate()
    done = rounds()

    both = [start("resume", str(path)) for _ in range(2)]
    wait_for(lambda: any(process.poll() is not None for process in both), "the end of one of the two")
    refused, goes_on = sorted(both, key=lambda process: process.poll() is None)
    _, said = refused.communicate()
    assert refused.returncode == 2, said
    other = f"fedappeal: '{path}' holds a run that process {goes_on.pid} is running: wait for it, or stop it first"
    assert said.splitlines() == [other]

    wait_for(lambda: rounds() > done, "a round more")
    goes_on.send_signal(signal.SIGINT)
    goes_on.communicate(timeout=WITHIN)
    assert goes_on.returncode == 130
    last = start("resume", str(path), "--rounds", str(rounds() + 2))
    _, said = last.communicate(timeout=WITHIN)
    assert last.returncode == 0, said
    history = Record(path).history
    assert [line["round"] for line in history] == list(range(1, len(history) + 1))
    assert [line["joined"] for line in history] == [2] * len(history)
    assert [line.get("failures", {}) for line in history] == [{}] * len(history)
    assert sum(line["event"] == "resumed" for line in Record(path).events) == 2
    check_tidy(path)
