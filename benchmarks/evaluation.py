"""CPU milliseconds a round in which every client is evaluated: ours against a plain PyTorch loop.

MaxFL, 100 Fashion-MNIST clients, 5 a round, the multi-layer perceptron; after each round the loss and accuracy of
every client's test and training examples. The plain loop does the same work, client by client, but for the weights of
the five models (it averages by examples). One thread and a process of its own for each; arms take turns; medians.
``python benchmarks/evaluation.py --json FILE``
"""

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

import simulation
from machine import described

ROW = "MaxFL, all evaluated"
simulation.ROWS[ROW] = {
    **{"task": "fmnist", "strategy": "maxfl", "clients": 100, "clients-per-round": 5},
    **{"evaluate-every": 1, "evaluate-train": True},
}
ARMS = ("plain loop", "ours, batched")


def main() -> None:
    """Measure and print; write JSON where asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="file for the figures")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=simulation.ROUNDS, help="rounds of each run")
    parser.add_argument("--arm", help=argparse.SUPPRESS)
    parser.add_argument("--row", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.arm:
        print(json.dumps(simulation.ARMS[arguments.arm](arguments.row, arguments.rounds)))
        return
    runs: dict[str, list[dict[str, Any]]] = {arm: [] for arm in ARMS}
    for _ in range(arguments.repetitions):
        for arm, found in runs.items():
            found.append(simulation.in_a_process(arm, ROW, arguments.rounds, __file__))
    cpu = {arm: [statistics.median(run["cpu"]) for run in found] for arm, found in runs.items()}
    for arm, each in cpu.items():
        print(
            f"{arm:<16}{1e3 * statistics.median(each):>8.1f} CPU ms a round, {runs[arm][-1]['accuracy']:.3f} accuracy"
        )
    pairs = [a / b for a, b in zip(cpu["ours, batched"], cpu["plain loop"], strict=True)]
    print(f"ours over plain loop: {statistics.median(pairs):.2f} ({min(pairs):.2f} to {max(pairs):.2f})")
    if arguments.json:
        arguments.json.write_text(json.dumps({**described(), "cpu_seconds": cpu, "ratios": pairs}, indent=2) + "\n")


if __name__ == "__main__":
    main()
