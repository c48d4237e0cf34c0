"""Whole commands: what a user waits and pays for, Python's start and all processes included."""

import json
import resource
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.runner import Figures

FEDAPPEAL = [sys.executable, "-m", "fedappeal.cli.main"]


def children_cpu() -> float:
    """Return the CPU seconds of this process's ended children."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def command(words: str, rounds: int = 0) -> Figures:
    """Run a command; return seconds, CPU seconds, bytes of its folder, and the last loss."""
    options = [*words.split(), *(["--rounds", str(rounds)] if rounds else [])]
    options += ["--threads", "1"] if options[0] == "simulate" else []
    with TemporaryDirectory(prefix="fedappeal-benchmark-") as scratch:
        folder, used, started = Path(scratch) / "run", children_cpu(), time.perf_counter()
        subprocess.run([*FEDAPPEAL, *options, "--out", str(folder)], check=True, stdout=sys.stderr)
        whole, used = time.perf_counter() - started, children_cpu() - used
        lines = [json.loads(line) for line in (folder / "history.jsonl").read_text("utf-8").splitlines()]
        size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    start = whole - sum(line["seconds"] for line in lines)
    seconds = [float(line["seconds"]) for line in lines[1:]]
    loss = next((f"{line['loss']:.6f}" for line in lines[::-1] if line.get("loss") is not None), "")
    return {"whole s": whole, "CPU s": used, "start s": start, "s": seconds, "bytes": size, "loss": loss}
