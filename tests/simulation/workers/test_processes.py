"""Workers that are processes: the result is that of one process, and none is left behind however a run ends."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from fedappeal.record.lines import HISTORY, MODEL
from fedappeal.record.reader import Record
from fedappeal.settings.config import ConfigError
from fedappeal.simulation.options import SEQUENTIAL, Simulation
from fedappeal.simulation.workers.process import processes
from fedappeal.system.files import read_safetensors
from tests.simulation.workers.test_workers import numbers, run, settings

COMMAND = [sys.executable, "-m", "fedappeal.cli.main", "simulate"]
ENDLESS = "--task digits --model logistic --clients 4 --rounds 100000 --requirement fixed --local-steps 1 --workers 2"


def test_processes_give_the_bits_of_one_process(tmp_path: Path) -> None:
    config = settings(strategy="scaffold", rounds=3)
    one, two = (run(tmp_path / str(n), config, Simulation(SEQUENTIAL, threads=1, workers=n)) for n in (0, 2))
    assert str(numbers(two)) == str(numbers(one))
    model, model_too = (read_safetensors(folder / MODEL)[0] for folder in (one, two))
    assert all(model_too[name].tobytes() == values.tobytes() for name, values in model.items())


def test_what_a_worker_finds_wrong_is_one_line() -> None:
    why = "AttributeError: 'object' object has no attribute 'contexts'"
    with processes([object()]) as (worker,), pytest.raises(ConfigError, match=why):  # type: ignore[list-item]
        worker.begin("load")()


def worker_of(command: psutil.Process) -> psutil.Process:
    return next(child for child in command.children() if "spawn_main" in " ".join(child.cmdline()))


def kill_worker(command: psutil.Process) -> None:
    worker_of(command).kill()


def press_ctrl_c(command: psutil.Process) -> None:
    os.killpg(command.pid, signal.SIGINT)


def terminate_the_group(command: psutil.Process) -> None:
    """As `timeout` and systemd do."""
    os.killpg(command.pid, signal.SIGTERM)


def kill_command(command: psutil.Process) -> None:
    command.kill()


@pytest.mark.parametrize(
    ("end", "code", "last_line"),
    [
        (kill_worker, 1, "a worker is lost: its process ended without a word"),
        (press_ctrl_c, 130, "interrupted; all finished rounds are kept"),
        (terminate_the_group, 130, "interrupted; all finished rounds are kept"),
        (kill_command, -signal.SIGKILL, ""),
    ],
)
def test_no_process_is_left_behind(
    end: Callable[[psutil.Process], None], code: int, last_line: str, tmp_path: Path
) -> None:
    folder, said = tmp_path / "run", tmp_path / "said"
    with said.open("w") as file:
        command = subprocess.Popen(
            [*COMMAND, *ENDLESS.split(), "--out", str(folder)], stdout=file, stderr=file, start_new_session=True
        )
    try:
        process = psutil.Process(command.pid)
        while command.poll() is None and len(Record(folder).history if (folder / HISTORY).exists() else ()) < 2:
            time.sleep(0.1)
        assert command.poll() is None, said.read_text()
        started = [*process.children(recursive=True)]
        assert len(started) >= 2
        end(process)
        assert command.wait(60) == code, said.read_text()
        assert not psutil.wait_procs(started, timeout=30)[1]
    finally:
        command.kill()
        command.wait()
    text = " ".join(said.read_text().split())  # a terminal's width breaks lines
    assert last_line in text
    assert "Traceback" not in text
    assert not last_line or "continue with: fedappeal resume" in text
