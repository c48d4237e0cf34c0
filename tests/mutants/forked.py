"""Processes that begin with torch, Flower and the tests' tools imported, and without this project's own modules."""

import importlib
import json
import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # as tests/conftest.py, before torch is imported

WARM = [
    *("torch", "torchvision", "numpy", "sklearn.datasets", "safetensors.numpy", "cryptography.x509", "grpc"),
    *("flwr.serverapp", "flwr.clientapp", "flwr.supernode.start_client_internal"),
    *("flwr.superlink.cli.flower_superlink", "starlette.applications", "starlette.testclient", "uvicorn", "httpx"),
    *("pydantic", "typer", "rich.console", "pytest", "pytest_timeout", "hypothesis"),
]


def warm_up() -> None:
    """Import what is slow to import and is not mutated."""
    for name in WARM:
        try:
            importlib.import_module(name)
        except ImportError:  # an extra that is not installed, or a later version's name: it takes a little longer
            continue


@dataclass
class _Child:
    job: int
    began: float
    limit: float
    folder: tempfile.TemporaryDirectory[str]


def run_forked(
    jobs: Iterable[tuple[Callable[[Path], Any], float]], processes: int, done: Callable[[int, Any], None]
) -> None:
    """Run each job in a process of its own, some side by side.

    Args:
        jobs: What to call with an empty folder, and its limit of seconds. It returns what JSON can write.
        processes: How many run at once.
        done: Called with a job's index and what it returned: None where its process ended otherwise, "limit" where it
            ran past its limit.
    """
    waiting, running = enumerate(jobs), dict[int, _Child]()
    try:
        while True:
            while len(running) < processes and (following := next(waiting, None)) is not None:
                index, (work, limit) = following
                folder = tempfile.TemporaryDirectory(prefix="mutant-", ignore_cleanup_errors=True)
                pid = os.fork()
                if pid == 0:
                    _work(work, Path(folder.name))
                running[pid] = _Child(index, time.monotonic(), limit, folder)
            if not running:
                return
            time.sleep(0.02)
            for pid, child in list(running.items()):
                ended = os.waitpid(pid, os.WNOHANG)[0] == pid
                if ended or time.monotonic() - child.began > child.limit:
                    _end(pid, ended)
                    del running[pid]
                    done(child.job, _outcome(child, ended))
    finally:
        for pid, child in running.items():
            _end(pid, False)
            child.folder.cleanup()


def _outcome(child: _Child, ended: bool) -> Any:
    """Return what a job returned, and remove its folder."""
    result = Path(child.folder.name, "result.json")
    outcome = json.loads(result.read_text()) if result.exists() else None if ended else "limit"
    child.folder.cleanup()
    return outcome


def _work(work: Callable[[Path], Any], folder: Path) -> None:
    """Do one job in this new process, and end it without waiting for its threads."""
    os.setsid()
    log = os.open(folder / "log", os.O_CREAT | os.O_WRONLY)
    os.dup2(log, 1)
    os.dup2(log, 2)
    try:
        outcome = work(folder)
        (folder / "result.part").write_text(json.dumps(outcome))
        (folder / "result.part").rename(folder / "result.json")
    finally:
        os._exit(0)


def _end(pid: int, ended: bool) -> None:
    """End a job's process, unless it has ended, and all that it started."""
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    finally:
        if not ended:
            os.waitpid(pid, 0)
