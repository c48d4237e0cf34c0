"""One runner for all rows: arms in processes of their own, in turn, one clock, one table.

A row compares arms that do the same work. Each repetition starts every arm once, one after the other; the table has
medians, and each arm's ratio to the row's reference by pairs of repetitions. Absolute figures say little on a shared
machine: read the ratios. Rows about what comes out (`influence`) have no reference.
"""

import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SMALL = "FEDAPPEAL_BENCHMARK_SMALL"
"""Environment variable: set where rows are only tried."""

Figures = Mapping[str, float | list[float] | str]
"""What one start of an arm measured, by name; of a list the median counts."""


@dataclass(frozen=True)
class BenchRow:
    """The arms of one row, which do the same work.

    Attributes:
        arms: name -> what measures it; it is given the number of rounds.
        over: the arm that the others are divided by.
        by: the figure that is divided.
        rounds: of each start.
        repetitions: starts of each arm.
    """

    arms: Mapping[str, Callable[[int], Figures]]
    over: str = ""
    by: str = "CPU s"
    rounds: int = 0
    repetitions: int = 3


class Clock:
    """Seconds and CPU seconds of this process between its marks."""

    def __init__(self) -> None:
        self._marks: list[tuple[float, float]] = []
        self.mark()

    def mark(self, *_: object) -> None:
        """End one part and begin the next."""
        self._marks.append((time.perf_counter(), time.process_time()))

    def rounds(self) -> dict[str, float | list[float] | str]:
        """Return all parts but the first and the last.

        The first holds the start, and the last always evaluates.
        """
        (start, *parts) = [(b[0] - a[0], b[1] - a[1]) for a, b in pairwise(self._marks)]
        seconds, used = zip(*(parts[:-1] or parts), strict=True)
        return {"s": list(seconds), "CPU s": list(used), "start s": start[0], "start CPU s": start[1]}


def design_of(module: str) -> dict[str, Any]:
    """Return what the data file beside a module says of its rows."""
    return tomllib.loads(Path(module).with_suffix(".toml").read_text("utf-8"))


def small() -> bool:
    """Return whether this is a trial run, with small rows."""
    return SMALL in os.environ


def row_size(size: int) -> int:
    """Return a row's size, a fiftieth of it in trial runs."""
    return min(size, max(10, size // 50)) if small() else size


def peak_mib() -> float:
    """Return the most memory that this process has had resident."""
    lines = Path("/proc/self/status").read_text("utf-8").splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))


def machine_facts() -> dict[str, Any]:
    """Return the date, the machine, its load and the versions."""
    from fedappeal.system.versions import recorded_versions

    lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    processor = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    machine = f"{platform.machine()}, {os.cpu_count()} cores, {processor}"
    date, load = time.strftime("%Y-%m-%d"), os.getloadavg()
    return {"date": date, "machine": machine, "load": load, "versions": recorded_versions()}


def start(name: str, arm: str, rounds: int, tree: Path) -> Figures:
    """Start an arm in its own process with a checkout's code; return its measurements."""
    command = [sys.executable, "-m", "benchmarks", name, "--arm", arm, "--rounds", str(rounds)]
    path = os.pathsep.join(map(str, dict.fromkeys((tree, ROOT))))
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{arm} of {name} failed with {tree}: {done.stderr[-3000:]}")
    figures: Figures = json.loads(done.stdout.strip().splitlines()[-1])
    return figures


def measure(
    name: str, row: BenchRow, arms: list[str], trees: Mapping[str, Path], repetitions: int, rounds: int
) -> Iterator[dict[str, list[Figures]]]:
    """Start a row's arms in turn; yield their figures after each repetition."""
    runs: dict[str, list[Figures]] = {}
    for _ in range(repetitions):
        for arm in arms:
            for side, tree in trees.items():
                runs.setdefault(arm + side, []).append(start(name, arm, rounds, tree))
        yield runs


FEDAPPEAL = [sys.executable, "-m", "fedappeal.cli.main"]
"""The program: what a user waits and pays for, Python's start and all processes included."""


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


def median(value: float | list[float] | str) -> float | None:
    """Return a figure's median; None if it is a text or has no numbers."""
    if isinstance(value, list):
        return statistics.median(value) if value else None
    return None if isinstance(value, str) else value


def table(name: str, row: BenchRow, runs: Mapping[str, list[Figures]]) -> None:
    """Print a row's medians, and each arm's ratio to the reference with its range."""
    figures = list(dict.fromkeys(key for of_arm in runs.values() for run in of_arm for key in run))
    reference = [median(run.get(row.by, "")) for run in runs.get(row.over, ())]
    widths = [max(10, len(key) + 2) for key in figures]
    over = f"  {row.by} over {row.over}" if reference else ""
    print(f"\n{name:<44}", *(f"{key:>{width}}" for key, width in zip(figures, widths, strict=True)), over, sep="")
    for arm, of_arm in runs.items():
        cells = []
        for key, width in zip(figures, widths, strict=True):
            numbers = [number for run in of_arm if (number := median(run.get(key, ""))) is not None]
            text = f"{statistics.median(numbers):.4g}" if numbers else str(of_arm[-1].get(key, ""))
            cells.append(f"{text:>{width}}")
        pairs = zip((median(run.get(row.by, "")) for run in of_arm), reference, strict=False)
        ratios = [mine / theirs for mine, theirs in pairs if mine is not None and theirs]
        shown = f"  {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})" if ratios else ""
        print(f"{arm:<44}", *cells, shown, sep="", flush=True)
