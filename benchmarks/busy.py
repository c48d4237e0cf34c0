"""CPU of a simulated round on a busy machine: PyTorch's default threads against one thread.

The multi-layer perceptron, 100 Fashion-MNIST clients, 5 a round, all evaluated, beside as many busy loops as there
are cores. *Spinning* is the same without what the command sets before it loads PyTorch (``OMP_WAIT_POLICY``); it is
measured once, because it takes long. A process of its own for each arm, in turn; medians of the CPU of both threads.
``python benchmarks/busy.py --json FILE``
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

ROW = "mlp, all evaluated"
SPINNING = "default threads, spinning"
ARMS = {"one thread": 1, "default threads": 0, SPINNING: 0}
BUSY = "import os\nparent = os.getppid()\nwhile os.getppid() == parent: pass"


def measured(arm: str, rounds: int) -> float:
    """Return CPU seconds a round, in a process of its own."""
    given = {key: value for key, value in os.environ.items() if not key.startswith(("OMP_", "GOMP_"))}
    command = [sys.executable, __file__, "--arm", arm, "--rounds", str(rounds)]
    done = subprocess.run(command, capture_output=True, text=True, env=given, check=True)
    return float(done.stdout.strip().splitlines()[-1])


def alone(arm: str, rounds: int) -> None:
    """Print the CPU seconds of a round, as a command of its own measures them."""
    from fedappeal.system.waiting_threads import sleep_while_waiting

    if arm != SPINNING:
        sleep_while_waiting()
    from simulation import ours

    print(statistics.median(ours(ROW, "batched", rounds, ARMS[arm])["cpu"]))


def main() -> None:
    """Measure and print; write JSON where asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="file for the figures")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--arms", default=";".join(ARMS), help="which, by semicolons; one thread among them")
    parser.add_argument("--rounds", type=int, default=6, help="of each run")
    parser.add_argument("--arm", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.arm:
        alone(arguments.arm, arguments.rounds)
        return
    loops = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(os.cpu_count() or 1)]
    try:
        cpu: dict[str, list[float]] = {arm: [] for arm in arguments.arms.split(";")}
        for repetition in range(arguments.repetitions):
            for arm, found in cpu.items():
                if arm != SPINNING or not repetition:
                    found.append(measured(arm, arguments.rounds))
                    print(f"{arm:<28}{1e3 * found[-1]:>8.1f} CPU ms a round", flush=True)
    finally:
        for loop in loops:
            loop.kill()
    for arm, found in cpu.items():
        over = [a / b for a, b in zip(found, cpu["one thread"], strict=False)]
        print(
            f"{arm:<28}{1e3 * statistics.median(found):>8.1f} CPU ms a round, {statistics.median(over):.2f} times "
            f"one thread ({min(over):.2f} to {max(over):.2f})"
        )
    if arguments.json:
        from machine import described

        arguments.json.write_text(json.dumps({**described(), "load": os.getloadavg(), "cpu": cpu}, indent=2) + "\n")


if __name__ == "__main__":
    main()
