"""Whole commands on today's code and on an earlier checkout, in turn: what a user of either waits and pays for.

Each row is a command of the program, run in a process of its own for each side; CPU time is that of the command and
all processes that it starts. A row's last history line is compared as well: the same settings must end in the same
model. Medians of the repetitions; the ratio is that of the pairs.
``git worktree add ../before COMMIT; python benchmarks/before_and_after.py ../before --json FILE``
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from machine import described

from fedappeal.record.run_folder import HISTORY, read_lines

PROGRAM = "import sys; from fedappeal.cli.main import main; sys.exit(main())"
NOW = Path(__file__).resolve().parents[1]
_FMNIST = ["simulate", "--task", "fmnist", "--threads", "1", "--strategy"]
_FREE = ["fedavg", "--participation", "always", "--requirement", "fixed", "--mandatory-rounds", "0"]
_RARELY = ["--evaluate-every", "0"]
_FIVE = ["--clients", "100", "--clients-per-round", "5"]
ROWS = {
    "MaxFL, 100 clients, all evaluated, 20 rounds": [*_FMNIST, "maxfl", *_FIVE, "--rounds", "20"],
    "MaxFL, 1,000 clients, all evaluated, 5 rounds": [
        *(*_FMNIST, "maxfl", "--clients", "1000", "--clients-per-round", "5", "--rounds", "5"),
        *("--min-examples", "1"),
    ],
    "FedAvg, 1,000 clients, all train 5 steps, 5 rounds": [
        *(*_FMNIST, *_FREE, *_RARELY, "--clients", "1000", "--local-steps", "5", "--rounds", "5"),
        *("--min-examples", "1"),
    ],
    "FedAvg, 10,000 clients, 2 rounds of 10": [
        *(*_FMNIST, *_FREE, *_RARELY, "--clients", "10000", "--clients-per-round", "10", "--rounds", "2"),
        *("--partition", "iid", "--min-examples", "1"),
    ],
    "FedAvg, 5 of 100 clients train the CNN, 5 rounds": [
        *(*_FMNIST, *_FREE, *_RARELY, *_FIVE, "--model", "cnn", "--rounds", "5"),
    ],
    "local: 10 client processes on digits, 10 rounds": [
        *("local", "--task", "digits", "--strategy", "maxfl", "--clients", "10", "--rounds", "10"),
    ],
}


def one_run(row: str, checkout: Path, folder: Path) -> dict[str, Any]:
    """Return what a row's command took on a checkout's code: seconds, CPU-seconds, and its last round."""
    used, started = _children(), time.perf_counter()
    environment = {**os.environ, "PYTHONPATH": str(checkout)}
    command = [sys.executable, "-c", PROGRAM, *ROWS[row], "--out", str(folder)]
    done = subprocess.run(command, cwd=folder.parent, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{row} failed on {checkout}: {done.stderr[-2000:]}")
    seconds, used = time.perf_counter() - started, _children() - used
    lines = read_lines(folder / HISTORY)
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    return {"seconds": seconds, "cpu": used, "bytes": size, "loss": lines[-1]["loss"], "rounds": len(lines)}


def _children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    """Measure and print the table; write JSON where asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("before", type=Path, help="a checkout of the earlier code")
    parser.add_argument("--json", type=Path, help="file for the figures")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--rows", default=";".join(ROWS), help="which rows, by semicolons")
    arguments = parser.parse_args()
    sides = {"before": arguments.before.resolve(), "now": NOW}
    report: dict[str, Any] = {}
    print(f"{'':<52}{'CPU-s before':>13}{'now':>8}{'ratio':>7}{'s before':>10}{'now':>8}{'ratio':>7}  final loss")
    for row in arguments.rows.split(";"):
        found: dict[str, list[dict[str, Any]]] = {side: [] for side in sides}
        for _ in range(arguments.repetitions):
            for side, checkout in sides.items():
                with tempfile.TemporaryDirectory(prefix="fedappeal-benchmark-") as scratch:
                    found[side].append(one_run(row, checkout, Path(scratch) / "run"))
        report[row] = found
        shown = ""
        for kind, width in (("cpu", 13), ("seconds", 10)):
            before, now = ([run[kind] for run in found[side]] for side in ("before", "now"))
            ratio = statistics.median(b / a for a, b in zip(before, now, strict=True))
            shown += f"{statistics.median(before):>{width}.1f}{statistics.median(now):>8.1f}{ratio:>7.2f}"
        losses = [found[side][-1]["loss"] for side in sides]
        print(f"{row:<52}{shown}  {losses[0]:.6f} {losses[1]:.6f}", flush=True)
        if arguments.json:
            arguments.json.write_text(json.dumps({**described(), "rows": report}, indent=2) + "\n")


if __name__ == "__main__":
    main()
