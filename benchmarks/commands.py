"""Whole commands: what a user waits and pays for, Python's start and all processes included.

``demo`` is the command of `make demo`, from its start to the beginning of its first round.
"""

import json
import re
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.run import Figures, Row

FEDAPPEAL = [sys.executable, "-m", "fedappeal.cli.main"]
DEMO = "local --strategy maxfl --task digits --clients 10 --rounds 20 --seed 0 --page 0 --against fedavg"


def children_cpu() -> float:
    """Return the CPU seconds of this process's ended children."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def cpu(pids: Sequence[int], children: bool = True) -> float:
    """Return the CPU seconds so far of processes, and of their children, ended ones included."""
    import psutil

    total = 0.0
    for pid in pids:
        root = psutil.Process(pid)
        for process in [root, *(root.children(recursive=True) if children else ())]:
            with suppress(psutil.NoSuchProcess):
                times = process.cpu_times()
                total += times.user + times.system + (times.children_user + times.children_system) * children
    return total


def command(words: str, rounds: int = 0) -> Figures:
    """Run a command of the program; return seconds, CPU seconds, bytes of its run's folder, and the last loss."""
    options = [*words.split(), *(["--rounds", str(rounds)] if rounds else [])]
    options += ["--threads", "1"] if options[0] == "simulate" else []
    with TemporaryDirectory(prefix="fedappeal-benchmark-") as scratch:
        folder, used, started = Path(scratch) / "run", children_cpu(), time.perf_counter()
        subprocess.run([*FEDAPPEAL, *options, "--out", str(folder)], check=True, stdout=sys.stderr)
        whole, used = time.perf_counter() - started, children_cpu() - used
        lines = [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]
        size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    start = whole - sum(line["seconds"] for line in lines)
    seconds = [float(line["seconds"]) for line in lines[1:]]
    loss = next((f"{line['loss']:.6f}" for line in lines[::-1] if line.get("loss") is not None), "")
    return {"whole s": whole, "CPU s": used, "start s": start, "s": seconds, "bytes": size, "loss": loss}


@contextmanager
def running(words: Sequence[str], log: Path) -> Iterator[tuple[int, Callable[[], str]]]:
    """Run a command until the end of the ``with`` statement; yield its process id, and what waits for its address."""
    with log.open("wb") as out:
        process = subprocess.Popen([*FEDAPPEAL, *words], stdout=out, stderr=subprocess.STDOUT)

    def address() -> str:
        while (url := re.search(r"http://\S+(?=\s)", log.read_text())) is None:
            if process.poll() is not None:
                raise RuntimeError(log.read_text())
            time.sleep(0.01)
        return url[0]

    try:
        yield process.pid, address
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(60)


def start_up(rounds: int) -> Figures:
    """Return the CPU seconds of all processes of `make demo`'s command, and the seconds, until its first round."""
    with TemporaryDirectory(prefix="fedappeal-benchmark-") as scratch:
        began, log = time.perf_counter(), Path(scratch) / "log"
        with running([*DEMO.split(), "--out", f"{scratch}/run"], log) as (pid, _):
            while not any('"event": "round"' in file.read_text() for file in Path(scratch).rglob("events.jsonl")):
                if not Path(f"/proc/{pid}/exe").exists():
                    raise RuntimeError(log.read_text())
                time.sleep(0.02)
            return {"CPU s": cpu([pid]), "s": time.perf_counter() - began}


ROWS = {"demo": Row({"now": start_up}, "now")}
