"""Promise: files of a run's folder that take some KB on the disk, and gigabytes when read, fill no memory."""

import json
import os
import resource
import shutil
import struct
import traceback
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from fedappeal.cli.commands import cli
from fedappeal.record.follower import Follower, Tail
from fedappeal.record.lines import EVENTS, HISTORY, MEASUREMENTS, PARTICIPATION, REQUIREMENTS
from fedappeal.runs.plan import RunPlan
from fedappeal.settings.config import ConfigError, RunConfig
from fedappeal.settings.model import Failure
from fedappeal.simulation.engine import simulate
from fedappeal.simulation.options import Simulation
from fedappeal.system.files import read_safetensors, read_values
from fedappeal.system.plain_files import LARGEST, read_bytes

ROOM = 1_200_000_000
"""Bytes by which the address space of a process that reads may grow: three blocks of `LARGEST`, and libraries."""
HUGE = 5_000_000_000
COMMANDS = ("report", "verify", "compare", "resume", "predict", "export")
READ_BY = {
    "config.json": COMMANDS,
    HISTORY: ("report", "verify", "compare", "resume"),
    EVENTS: ("verify", "resume"),
    PARTICIPATION: ("report", "verify", "resume"),
    MEASUREMENTS: ("report", "verify", "resume"),
    REQUIREMENTS: ("report", "verify"),
}
"""Which commands read each file, and refuse it."""
SETTINGS = {"clients": 2, "rounds": 1, "local-steps": 1, "task": "digits", "strategy": "fedavg", "solo.steps": 1}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("run") / "run"
    config, how = RunConfig.parse(SETTINGS), Simulation(mode="sequential")
    simulate(config, RunPlan.of(config, run).folder(how.runtime()), how)
    return run


@pytest.fixture
def run(whole: Path, tmp_path: Path) -> Path:
    shutil.copytree(whole, tmp_path / "run")
    np.savez(tmp_path / "data.npz", x=np.zeros((1, 1, 8, 8), np.float32))
    return tmp_path / "run"


def in_little_memory(call: Callable[[], object], room: int = ROOM) -> str:
    """Call something in a fork of this process whose memory may not grow by more; return what it returned."""
    ours, theirs = os.pipe()
    if not (child := os.fork()):
        try:
            size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (size + room,) * 2)
            told = str(call())
        except BaseException:
            told = traceback.format_exc()
        os.write(theirs, told.encode())
        os._exit(0)
    os.close(theirs)
    with open(ours) as pipe:
        told = pipe.read()
    os.waitpid(child, 0)
    return told


def said(words: tuple[str, ...]) -> str:
    done = CliRunner().invoke(cli, words)
    if done.exception is not None and not isinstance(done.exception, ConfigError | Failure | SystemExit):
        raise done.exception
    told = str(done.exception) if isinstance(done.exception, ConfigError | Failure) else done.output
    return f"{done.exit_code} {told}"


def words_of(command: str, run: Path) -> tuple[str, ...]:
    more = {
        "export": ("--to", "safetensors", "--output", str(run.parent / "out.safetensors")),
        "predict": ("--data", str(run.parent / "data.npz")),
        "resume": ("--rounds", "2"),
    }
    return command, str(run), *more.get(command, ())


@pytest.mark.parametrize(("name", "size"), [*((name, HUGE) for name in READ_BY), (HISTORY, 1_500_000_000)])
def test_a_file_with_a_hole_behind_it_is_refused_in_one_line(name: str, size: int, run: Path) -> None:
    (run / name).touch()
    os.truncate(run / name, size)
    assert (run / name).stat().st_blocks * 512 < 100_000
    for command in READ_BY[name]:
        told = in_little_memory(lambda command=command: said(words_of(command, run)))  # type: ignore[misc]
        assert not told.startswith("0 "), (command, told)
        assert len(told.splitlines()) == 1, (command, told)
        assert name in told
    assert (run / name).stat().st_size == size


def test_lines_between_holes_are_read_one_by_one(run: Path) -> None:
    with open(run / EVENTS, "r+b") as file:
        for _ in range(12):
            file.seek(60_000_000, os.SEEK_END)
            file.write(b"\n")
    told = in_little_memory(lambda: said(("verify", str(run))))
    assert told.count("is damaged: line ") == 12
    assert "Traceback" not in told


def test_a_followed_file_ends_at_a_line_that_is_too_long(run: Path) -> None:
    lines = len(Tail(run / HISTORY).read() or [])
    os.truncate(run / HISTORY, 1_500_000_000)
    assert in_little_memory(lambda: len(Tail(run / HISTORY).read() or [])) == str(lines) == "1"
    os.truncate(run / EVENTS, HUGE)
    assert in_little_memory(lambda: len(Follower(run).read().rounds)) == "1"


def test_a_tail_reads_on_once_a_line_has_its_end(tmp_path: Path) -> None:
    tail = Tail(tmp_path / HISTORY)
    (tmp_path / HISTORY).write_bytes(b'{"round": 1}\n{"rou')
    assert tail.read() == [{"round": 1}]
    assert tail.read() == []
    with open(tmp_path / HISTORY, "ab") as file:
        file.write(b'nd": 2}\n{"round": 3}\n')
    assert tail.read() == [{"round": 2}, {"round": 3}]


def test_a_text_is_bounded_to_the_byte(tmp_path: Path) -> None:
    (tmp_path / "it").touch()
    os.truncate(tmp_path / "it", LARGEST)
    assert len(read_bytes(tmp_path / "it")) == LARGEST
    os.truncate(tmp_path / "it", LARGEST + 1)
    with pytest.raises(ValueError, match="it is longer than 134,217,728 bytes"):
        read_bytes(tmp_path / "it")


# -- files of arrays ------------------------------------------------------------------------------------


@pytest.mark.parametrize("read", [read_safetensors, read_values], ids=["all", "scalars"])
@pytest.mark.parametrize("length", [50_000_000, 90_000_000_000, 2**63], ids=["holes", "beyond", "huge"])
def test_a_header_of_holes(length: int, read: Callable[[Path], object], tmp_path: Path) -> None:
    path = tmp_path / "it.safetensors"
    path.write_bytes(struct.pack("<Q", length))
    os.truncate(path, HUGE)

    def reading() -> object:
        try:
            return read(path)
        except ConfigError as error:
            return error

    assert "cannot be read" in in_little_memory(reading, HUGE + ROOM)  # it is mapped, not held


def test_a_header_that_claims_more_than_the_file_has(tmp_path: Path) -> None:
    path = tmp_path / "it.safetensors"
    for shape, end in (([2**40], 2**42), ([2**62, 2**62], 8), ([0, 2**62], 2**62), ([-1], 4)):
        text = json.dumps({"w": {"dtype": "F32", "shape": shape, "data_offsets": [0, end]}}).encode()
        path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(8))
        with pytest.raises(ConfigError, match="cannot be read"):
            read_safetensors(path)
