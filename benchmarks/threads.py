"""Seconds of a round's local training on two threads against one: ResNet-18 (GroupNorm) and a tiny transformer.

Ten clients. *One thread*: one client after another on one PyTorch thread. *Two threads*: what ``--mode sequential
--threads 2`` does, two clients at a time, each on one thread. *PyTorch's threads*: one client after another, each
product on both. Arms take turns; wall time is the point, so other programs disturb it: the load is printed, and CPU
time besides. What ``--mode auto`` takes with two threads stands behind.
``python benchmarks/threads.py --json FILE``
"""

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from machine import described
from side_by_side import Round

from fedappeal.simulation.forms.measurement import train_all
from fedappeal.simulation.forms.threaded import ThreadedScheduler
from fedappeal.simulation.process_wide import single_threaded_workers

ROWS = ("ResNet-18, GroupNorm", "tiny transformer")
CLIENTS, THREADS = 10, 2


def measured(row: str, repetitions: int) -> dict[str, Any]:
    """Return seconds and CPU seconds of each arm, and what ``auto`` takes."""
    this = Round(row, CLIENTS, torch.device("cpu"))
    with single_threaded_workers(THREADS) as workers:
        assert workers is not None
        scheduler = ThreadedScheduler(workers, THREADS)
        arms: dict[str, tuple[int, Callable[[], None]]] = {
            "one thread": (1, this.one_by_one),
            "two threads": (1, lambda: train_all(scheduler, this.requests)),
            "PyTorch's threads": (THREADS, this.one_by_one),
        }
        seconds: dict[str, list[float]] = {arm: [] for arm in arms}
        cpu: dict[str, list[float]] = {arm: [] for arm in arms}
        for repetition in range(repetitions + 1):
            for arm, (threads, work) in arms.items():
                torch.set_num_threads(threads)
                begun, used = time.perf_counter(), time.process_time()
                work()
                if repetition:  # the first warms up
                    seconds[arm].append(time.perf_counter() - begun)
                    cpu[arm].append(time.process_time() - used)
    torch.set_num_threads(THREADS)
    choice = this.chosen()
    return {"row": row, "seconds": seconds, "cpu": cpu, "choice": choice.mode, "why": choice.why}


def main() -> None:
    """Measure, print a table, and write JSON where asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="file for the figures")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--rows", default=";".join(ROWS), help="which models, by semicolons")
    arguments = parser.parse_args()
    rows = []
    for row in arguments.rows.split(";"):
        found = measured(row, arguments.repetitions)
        rows.append(found)
        alone = found["seconds"]["one thread"]
        for arm, values in found["seconds"].items():
            gains = [a / b for a, b in zip(alone, values, strict=True)]
            print(
                f"{row:<24}{arm:<20}{statistics.median(values):>8.2f} s{statistics.median(found['cpu'][arm]):>8.2f} "
                f"CPU s{statistics.median(gains):>6.2f} times as fast ({min(gains):.2f} to {max(gains):.2f})",
                flush=True,
            )
        load = " ".join(f"{each:.1f}" for each in os.getloadavg())
        print(f"{row:<24}auto: {found['choice']} ({found['why']}); load {load}", flush=True)
    if arguments.json:
        facts = {**described(), "load": os.getloadavg(), "rows": rows}
        arguments.json.write_text(json.dumps(facts, indent=2) + "\n")


if __name__ == "__main__":
    main()
