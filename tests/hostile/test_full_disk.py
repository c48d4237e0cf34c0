"""Promise: a full disk, a folder that cannot be written and a folder in use end in one line; nothing is lost."""

import errno
import os
import resource
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import server.server_run
from client.app import Clients
from client.process.serve import Event, run_client
from client.process.status import describe
from client.roster import Participants
from client.settings import Connection, NodeSettings
from client.state.memory import RunMemory
from client.state.store import DiskStore
from client.training.task_learner import TaskLearners
from fedappeal.cli.main import main
from fedappeal.core.local_rule import StoredRecord
from fedappeal.record.lines import HISTORY, MODEL, append_lines
from fedappeal.record.reader import Record as RunRecord
from fedappeal.settings.config import ConfigError, RunConfig
from fedappeal.system.files import write_safetensors
from fedappeal.system.locks import only_process
from server.build import Plugins, run_plugins
from strategies import FedAvg
from tests.grid import MemoryGrid, Volunteer, time_of

NOBODY = 65534


class Disk:
    """A disk that is full for one write, the ``number``-th."""

    def __init__(self, number: int) -> None:
        self.left = number

    def write(self) -> None:
        self.left -= 1
        if self.left == 0:
            raise OSError(errno.ENOSPC, "No space left on device")


def fill(monkeypatch: pytest.MonkeyPatch, number: int) -> Disk:
    disk, fsync, append = Disk(number), os.fsync, append_lines

    def full_fsync(file: int) -> None:
        disk.write()
        fsync(file)

    def full_append(*given: Any) -> None:
        disk.write()
        append(*given)

    monkeypatch.setattr("os.fsync", full_fsync)
    monkeypatch.setattr("fedappeal.record.folder.append_lines", full_append)
    return disk


def federate(config: RunConfig) -> None:
    grid = MemoryGrid({10 + k: Volunteer(f"c{k}", evaluation={"accuracy": 0.5}) for k in range(2)})
    with time_of(grid):
        server.server_run.run(grid, run_plugins(config))


def test_a_disk_that_is_full_at_any_write_costs_no_finished_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Plugins, "build", lambda plugins: FedAvg())
    initial = tmp_path / "initial.safetensors"
    write_safetensors(initial, {"w": np.zeros(3, np.float32)}, {})
    for number in range(1, 200):
        out = tmp_path / str(number)
        config = RunConfig(clients=2, rounds=3, out=str(out), initial_model=str(initial), start_timeout=20.0)
        with monkeypatch.context() as patch:
            disk = fill(patch, number)
            failed = number
            with suppress(OSError, ConfigError):  # the second before there is a run
                federate(config)
                failed = 0
        if disk.left > 0:
            break  # it made fewer writes
        assert failed == number
        assert not [file.name for file in out.glob(".*.tmp")] if out.exists() else True
        if not (out / "config.json").exists():
            continue  # before there was a run
        federate(config.model_copy(update={"resume": True}))
        assert [line["round"] for line in RunRecord(out).history] == [1, 2, 3]
        assert len(RunRecord(out).decisions) == 6
        assert RunRecord(out).standing.end is not None
        assert (out / MODEL).exists()
        assert RunRecord(out).events
    assert number > 20


@contextmanager
def file_size(most: int) -> Iterator[None]:
    """Let no file grow beyond a size: a write is cut short there, as on a full disk."""
    before, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


def test_a_line_that_does_not_fit_leaves_no_part_of_it(tmp_path: Path) -> None:
    path = tmp_path / HISTORY
    append_lines(path, [{"round": 1}])
    size = path.stat().st_size
    for room in range(13):
        with file_size(size + room), pytest.raises(OSError, match="File too large"):
            append_lines(path, [{"round": 2, "more": "x" * 20}])
        assert path.stat().st_size == size
    append_lines(path, [{"round": 2}])
    assert [line["round"] for line in RunRecord(path.parent).lines(path.name)] == [1, 2]


def test_a_record_that_does_not_fit_leaves_the_old_one(tmp_path: Path) -> None:
    store = DiskStore(tmp_path)
    store.write("run-k", StoredRecord({"requirement": "r", "left-round": 0}))
    for room in (0, 10, store.path("run-k").stat().st_size - 1):
        with file_size(room), pytest.raises(OSError, match=r"too large|Error while"):
            RunMemory(store, "k").leave(3)
        assert not RunMemory(store, "k").has_left(9)
        assert sorted(file.name for file in tmp_path.iterdir()) == ["changes.lock", "copies", "run-k.safetensors"]
    RunMemory(store, "k").leave(3)
    assert RunMemory(store, "k").has_left(9)


# -- a client's folder -----------------------------------------------------------------------------------


@contextmanager
def as_nobody(folder: Path) -> Iterator[None]:
    """Become a user that can read the folder, and not write to it; root could write anywhere."""
    if os.geteuid() == 0:
        for path in [folder, *folder.rglob("*")]:
            path.chmod(0o755 if path.is_dir() else 0o644)
        for parent in folder.parents:
            if parent.stat().st_uid == 0 and not parent.stat().st_mode & 0o001:
                parent.chmod(parent.stat().st_mode | 0o011)
        os.seteuid(NOBODY)
    else:
        folder.chmod(0o555)
    try:
        yield
    finally:
        os.seteuid(os.getuid())
        folder.chmod(0o755)


def start(state: Path) -> tuple[int, list[Event]]:
    """Start a client whose SuperLink is not there."""
    told: list[Event] = []
    node = NodeSettings(partition_id=0, state_dir=str(state), client_id="anna", device="cpu", allow="")
    connection = Connection(superlink="127.0.0.1:1", insecure=True)
    code = run_client(
        node, connection, Clients(Participants(TaskLearners())), connect_timeout=0.1, on_event=told.append
    )
    return code, told


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def state(tmp_path: Path) -> Path:
    store = DiskStore(tmp_path / "state")
    store.write("identity", StoredRecord({"client-id": "anna"}))
    RunMemory(store, "k").leave(4)
    return store.folder


def test_a_folder_that_cannot_be_written_is_one_line_and_can_be_looked_at(
    state: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = contents(state)
    with as_nobody(state):
        assert describe(state)[0].startswith("client     anna")
        code, told = start(state)
        assert code == 2
        assert [(event.kind, event.text) for event in told] == [
            ("given-up", f"'{state}' is not allowed: Permission denied")
        ]
        for command in ("reset", "pause"):
            monkeypatch.setattr(sys, "argv", ["fedappeal", "client", command, "--state-dir", str(state)])
            with pytest.raises(SystemExit) as ended:
                main()
            assert ended.value.code == 1
            (line,) = capsys.readouterr().err.splitlines()
            assert "Permission denied" in line
    assert contents(state) == before


def test_a_client_that_cannot_write_its_id_says_so(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(file: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    before = contents(state)
    code, told = start(state)
    assert code == 2
    line = f"[Errno 28] No space left on device: '{state}/identity.safetensors'"
    assert [(event.kind, event.text) for event in told] == [("given-up", line)]
    after = contents(state)
    assert {name: after[name] for name in before} == before
    assert after.keys() - before.keys() == {str(state / "lock")}


def test_two_clients_on_one_folder(state: Path) -> None:
    with only_process(state):
        before = contents(state)
        code, told = start(state)
        assert code == 2
        other = f"another client (process {os.getpid()}): stop it, or give another folder"
        assert [event.text for event in told] == [f"state-dir = '{state}' is in use by {other}"]
        assert contents(state) == before
