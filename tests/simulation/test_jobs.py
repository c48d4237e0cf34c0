"""Jobs in processes of their own: failures, processes that die, and a parent that dies."""

import contextlib
import errno
import gc
import os
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest
import torch

from fedappeal.runs.launch.in_process import Machine, simulate_quietly
from fedappeal.runs.plan import RunPlan
from fedappeal.settings.config import ConfigError, RunConfig
from fedappeal.simulation.jobs import LOST, run_in_parallel
from fedappeal.simulation.options import Simulation
from tests.simulation.work import write

ROOT = Path(__file__).parents[2]


def done(work: list[partial[None]], at_once: int) -> dict[int, str]:
    ended: dict[int, str] = {}
    ticks: list[int] = []
    run_in_parallel(work, at_once, lambda number, reason: ended.update({number: reason}), lambda: ticks.append(1))
    assert ticks
    return ended


def test_a_failure_is_told_and_the_rest_is_done(tmp_path: Path) -> None:
    files = [tmp_path / str(n) for n in range(4)]
    fails = ["", "no\n  luck", "config", ""]
    ended = done([partial(write, file, fail) for file, fail in zip(files, fails, strict=True)], 2)
    assert ended == {0: "", 1: "RuntimeError: no luck", 2: "rounds = 0 is not allowed", 3: ""}
    processes = {int(file.read_text()) for file in files}
    assert len(processes) <= 2
    assert os.getpid() not in processes


def test_a_process_that_dies_does_not_take_the_rest_along(tmp_path: Path) -> None:
    files = [tmp_path / str(n) for n in range(3)]
    ended = done([partial(write, file, "die" if n == 0 else "") for n, file in enumerate(files)], 1)
    assert ended == {0: LOST, 1: "", 2: ""}


@pytest.mark.parametrize("number", [errno.EROFS, errno.ENOSPC])
def test_a_system_without_semaphores_is_one_line(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("multiprocessing.synchronize.SemLock.__init__", refuse)
    with pytest.raises(ConfigError, match=f"^several runs need semaphores .*/dev/shm.*: {os.strerror(number)}$"):
        run_in_parallel([print], 1, print)


def alive(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    return False


def test_no_process_outlives_its_parent(tmp_path: Path) -> None:
    file = tmp_path / "pid"
    code = f"""
from functools import partial
from pathlib import Path
from fedappeal.simulation.jobs import run_in_parallel
from tests.simulation.work import linger
run_in_parallel([partial(linger, Path({str(file)!r}))], 1, print)
"""
    parent = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)})
    try:
        deadline = time.monotonic() + 60
        while not (file.exists() and file.read_text()) and time.monotonic() < deadline:
            time.sleep(0.05)
        child = int(file.read_text())
        assert alive(child)
    finally:
        parent.kill()
        parent.wait()
    deadline = time.monotonic() + 20
    while alive(child) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not alive(child)


def test_threads_are_shared_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    assert [Machine(jobs).for_jobs(9).threads for jobs in (1, 3, 8, 9)] == [8, 2, 1, 1]
    assert Machine(2, threads=5).for_jobs(9).threads == 5
    with pytest.raises(ConfigError, match="jobs = 0 is not allowed: at least 1"):
        Machine(0)


def test_a_process_that_does_many_runs_keeps_no_memory_of_the_last(tmp_path: Path) -> None:
    config = RunConfig.parse({"task": "digits", "clients": 3, "rounds": 1, "local-steps": 1, "solo.steps": 1})

    def tensors_kept_by_run(number: int) -> int:
        simulate_quietly(RunPlan.of(config, tmp_path / str(number)), Simulation(threads=1))
        return sum(issubclass(type(each), torch.Tensor) for each in gc.get_objects())

    collecting = gc.isenabled()
    gc.disable()
    try:
        first = tensors_kept_by_run(0)
        assert [tensors_kept_by_run(number) for number in (1, 2)] == [first, first]
    finally:
        if collecting:
            gc.enable()
