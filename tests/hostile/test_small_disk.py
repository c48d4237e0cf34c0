"""Promise: a disk that fills up ends a run with one line; nothing is half-written, and `resume` goes on with room."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from client.state.memory import RunMemory
from client.state.store import DiskStore
from fedappeal.protocol import keys
from fedappeal.record.reader import Record
from tests.node import RUN_KEY, Node, metrics_of, run_config
from tests.soak.full_disk import PAGE, disk, make_room
from tests.soak.kills import check_tidy, processes_with

ROOT = Path(__file__).resolve().parents[2]
MOUNT_TESTS = "FEDAPPEAL_MOUNT_TESTS"
MARK = "FEDAPPEAL_SMALL_DISK"
SMALL = "--task digits --model logistic --clients 2 --local-steps 5 --participation always --page 0"


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A disk of 16 MB."""
    try:
        with disk(tmp_path / "disk", "16m"):
            yield tmp_path / "disk"
    except PermissionError as error:
        if os.environ.get(MOUNT_TESTS):
            raise
        pytest.skip(f"{error} ({MOUNT_TESTS}=1 makes this fail)")


def test_disks_that_are_too_small_by_more_and_more(small: Path, tmp_path: Path) -> None:
    fills = subprocess.run(
        [sys.executable, "-m", "tests.soak.full_disk", "--step", "4", "--out", str(tmp_path / "disks")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert fills.returncode == 0, fills.stdout + fills.stderr
    assert json.loads(fills.stdout.splitlines()[-1])["full"] >= 4


def test_a_local_run_on_a_disk_that_another_program_fills(small: Path) -> None:
    path, filler = small / "run", small / "filler"
    command = [sys.executable, "-m", "fedappeal.cli.main"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), MARK: str(small)}
    quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    run = subprocess.Popen(
        [*command, "local", *SMALL.split(), "--rounds", "100000", "--out", str(path)],
        env=environment,
        text=True,
        **quiet,
    )
    try:
        until = time.monotonic() + 240
        while Record(path).snapshot.last_round < 2:
            assert run.poll() is None
            assert time.monotonic() < until
            time.sleep(0.05)
        with filler.open("wb", buffering=0) as file, suppress(OSError):
            while file.write(bytes(4096)):
                pass
        _, said = run.communicate(timeout=240)
    finally:
        run.kill()
        run.wait()
    assert run.returncode == 1, said
    (line,) = said.splitlines()
    assert "No space left on device" in line, line
    until = time.monotonic() + 10
    while alive := processes_with(f"{MARK}={small}"):
        assert time.monotonic() < until, alive
        time.sleep(0.05)
    assert not [file for file in path.rglob("*") if ".tmp" in file.name]
    filler.unlink()
    rounds = len(Record(path).history) + 2
    again = subprocess.run(
        [*command, "resume", str(path), "--rounds", str(rounds)],
        env=environment,
        text=True,
        timeout=240,
        check=False,
        **quiet,
    )
    assert again.returncode == 0, again.stderr
    history = Record(path).history
    assert [line["round"] for line in history] == list(range(1, rounds + 1))
    check_tidy(path)


STATE = run_config(clients=4, solo__steps=2, local_steps=2, goodwill=3)


def served(node: Node) -> tuple[list[str], int]:
    """Ask a client for everything; return the errors that it had, and the rounds that it joined by goodwill."""
    errors, joined = [], 0
    for number in range(5):
        model = {name: (5 + number) * np.ones_like(array) for name, array in node.initial.items()}
        kind = "query" if number == 0 else "train" if number < 4 else "evaluate"
        try:
            answer = metrics_of(node(kind, model, server_round=number, mandatory=1, final=1))
            joined += answer.get(keys.DECISION) == 1
        except OSError as error:
            errors.append(str(error))
    return errors, joined


def test_a_client_whose_state_alone_has_no_room_does_nothing_that_it_cannot_remember(
    small: Path, tmp_path: Path
) -> None:
    failed, pages = set(), 0
    errors = ["begin"]
    while errors:
        pages += 1
        with disk(tmp_path / "state", str(pages * PAGE)):
            state = tmp_path / "state"
            errors, joined = served(Node(STATE, state))
            assert all("No space left on device" in error for error in errors)
            assert not [file for file in state.rglob("*") if ".tmp" in file.name]
            assert RunMemory(DiskStore(state), RUN_KEY).goodwill_spent == joined
            make_room(state)
            assert served(Node(STATE, state)) == ([], 3), "with room it is as if nothing had been"
            assert RunMemory(DiskStore(state), RUN_KEY).goodwill_spent == 3
            assert not DiskStore(state).damaged_names()
        failed.add(len(errors))
    assert {0, 1, 4} <= failed, "disks that are full in the middle"
