"""Two benchmarks that others published, on this machine: ours, a plain PyTorch loop, pfl-research and fluke.

FLUTE's logistic regression: 1,000 clients, 10 a round, batches of 10, 1 epoch, learning rate 0.03, 100 rounds, all
clients' test examples every 20 rounds (https://github.com/microsoft/msrflute, README, "Benchmarking"). pfl-research's
CIFAR-10, IID: 1,000 users of 50, 50 a round, batches of 10, 1 epoch, learning rate 0.1
(https://github.com/apple/pfl-research, benchmarks/image_classification/configs/baseline.yaml), here 5 of its 1,500
rounds, without its central evaluation. Pixels are generated (``pixels.py``). One thread and a process of its own for
each arm, arms in turn.
``python benchmarks/published.py --json FILE``
"""

import argparse
import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

import simulation
from machine import described
from peer_programs import PEERS, peer, peer_python, write_data

FLUTE, PFL = "FLUTE, logistic regression", "pfl, CIFAR-10 IID"
ROUNDS = {FLUTE: 100, PFL: 5}
_BOTH = {"clients": 1000, "batch-size": 10, "min-examples": 1}
# An epoch, in steps: 60 and 50 examples by 10.
simulation.ROWS |= {
    FLUTE: {
        **{**_BOTH, "task": "pixels:MnistPixels", "clients-per-round": 10, "local-steps": 6},
        **{"learning-rate": 0.03, "evaluate-every": 20},
    },
    PFL: {
        **{**_BOTH, "task": "pixels:CifarPixels", "clients-per-round": 50, "local-steps": 5},
        **{"learning-rate": 0.1, "evaluate-every": 0},
    },
}
OURS = "ours, auto"
ARMS = ("plain loop", OURS, *PEERS)


def main() -> None:
    """Measure and print; write JSON where asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="file for the figures")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--rows", default=";".join(ROUNDS), help="which rows, by semicolons")
    parser.add_argument("--peers", type=Path, help="folder of the peers' environment; made where it is missing")
    parser.add_argument("--arm", help=argparse.SUPPRESS)
    parser.add_argument("--row", help=argparse.SUPPRESS)
    parser.add_argument("--rounds", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.arm:
        print(json.dumps(simulation.ARMS[arguments.arm](arguments.row, arguments.rounds)))
        return
    report: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="fedappeal-benchmark-") as scratch:
        python = peer_python(arguments.peers or Path(scratch) / "peers")
        for row in arguments.rows.split(";"):
            data, rounds = Path(scratch) / "data.npz", ROUNDS[row]
            config = simulation.config_of(row, rounds)
            write_data(config, data)
            runs: dict[str, list[dict[str, Any]]] = {arm: [] for arm in ARMS}
            for _ in range(arguments.repetitions):
                for arm, found in runs.items():
                    if arm in PEERS:
                        found.append(peer(arm, config, python, data))
                    else:
                        found.append(simulation.in_a_process(arm, row, rounds, __file__))
            report[row] = _table(row, runs)
            if arguments.json:
                arguments.json.write_text(json.dumps({**described(), "rows": report}, indent=2) + "\n")


def _table(row: str, runs: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Print and return each arm's seconds for all rounds, by the mean round: few of them evaluate."""
    whole = {
        kind: {arm: [ROUNDS[row] * statistics.fmean(run[kind]) for run in found] for arm, found in runs.items()}
        for kind in ("seconds", "cpu")
    }
    print(f"\n{row}: {ROUNDS[row]} rounds")
    print(f"{'':<12}{'seconds':>9}{'CPU-s':>8}{'/ ours':>8}{'start-up s':>12}{'accuracy':>10}")
    table: dict[str, Any] = {}
    for arm, found in runs.items():
        over = [a / b for a, b in zip(whole["cpu"][arm], whole["cpu"][OURS], strict=True)]
        table[arm] = {
            "seconds": statistics.median(whole["seconds"][arm]),
            "cpu_seconds": statistics.median(whole["cpu"][arm]),
            "over_ours": statistics.median(over),
            "range": [min(over), max(over)],
            "startup_seconds": statistics.median(run["startup"] for run in found),
            "accuracy": found[-1]["accuracy"],
        }
        seconds, cpu, ratio, _, startup, accuracy = table[arm].values()
        print(f"{arm:<12}{seconds:>9.2f}{cpu:>8.2f}{ratio:>8.2f}{startup:>12.1f}{100 * accuracy:>8.1f} %", flush=True)
    return table


if __name__ == "__main__":
    main()
