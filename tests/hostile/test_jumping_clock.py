"""Promise: rounds go on while the clock of a machine, or of the clients alone, jumps by an hour, either way."""

import os
import shutil
import struct
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from fedappeal.federation.superlink import SuperLink
from tests.hostile import federation as attacked
from tests.hostile.federation import Federation, federation

pytestmark = pytest.mark.timeout(900)

CLOCK_TESTS = "FEDAPPEAL_CLOCK_TESTS"
COMPILER = shutil.which("cc")
CLIENTS, ROUNDS = 3, 9
HOUR = 3600
JUMPS = {2: HOUR, 5: -HOUR, 7: 0}
"""After which round the clock is set, and how many seconds ahead of the right time it then is."""

if not (COMPILER and sys.platform == "linux") and not os.environ.get(CLOCK_TESTS):
    pytest.skip(f"no C compiler ({CLOCK_TESTS}=1 makes this fail)", allow_module_level=True)


@pytest.fixture
def clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file with how far ahead the clock is of the processes that are started from here on."""
    assert COMPILER, "there is no C compiler"
    library, file = tmp_path / "jumping_clock.so", tmp_path / "clock"
    source = Path(__file__).with_name("jumping_clock.c")
    subprocess.run([COMPILER, "-O1", "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"], check=True)
    file.write_bytes(struct.pack("=q", 0))
    monkeypatch.setenv("LD_PRELOAD", str(library))
    monkeypatch.setenv("JUMPING_CLOCK", str(file))
    return file


def jump(clock: Path, ahead: int) -> None:
    """Set the clock."""
    with clock.open("r+b", buffering=0) as file:
        file.write(struct.pack("=q", ahead))


def run_and_jump(run: Federation, clock: Path) -> None:
    """Run, and set the clock whenever one of the rounds of `JUMPS` has ended."""
    run.submit()
    for after, offset in JUMPS.items():
        until = time.monotonic() + 240
        while len(run.history) < after:
            assert time.monotonic() < until, run.log
            time.sleep(0.05)
        jump(clock, offset)
    run.follow()


def check(run: Federation) -> None:
    """Check that each client took part in each round, and that no round waited for its deadline."""
    assert [(line["joined"], line["failed"], line["evaluated"]) for line in run.history] == [
        (CLIENTS, 0, CLIENTS)
    ] * ROUNDS
    assert all(0 <= line["seconds"] < run.config.round_timeout for line in run.history)
    assert [line["event"] for line in run.events if line["event"] not in ("enrolled", "round", "waiting")] == [
        "finished"
    ]


def test_the_clock_of_the_machine_jumps(clock: Path, tmp_path: Path) -> None:
    with federation(tmp_path, attackers=0, clients=CLIENTS, rounds=ROUNDS, local_steps=60, round_timeout=60.0) as run:
        run_and_jump(run, clock)
        times = [line["time"] for line in run.events if line["event"] == "round"]
    check(run)
    assert max(times) - min(times) > 3500, "the server's clock did not jump"


def test_the_clock_of_the_clients_jumps(clock: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attacked, "SuperLink", partial(SuperLink, environment={"LD_PRELOAD": ""}))
    with federation(tmp_path, attackers=0, clients=CLIENTS, rounds=ROUNDS, local_steps=60, round_timeout=60.0) as run:
        run_and_jump(run, clock)
        times = [line["time"] for line in run.events if line["event"] == "round"]
    check(run)
    assert max(times) - min(times) < 600
