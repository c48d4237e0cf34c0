"""Whole commands: what a user waits and pays for, Python's start and all processes included.

With ``--before`` the same settings must end in the same model: compare the last column.
"""

import json
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

from benchmarks.run import Figures, Row, children_cpu

PROGRAM = "import sys; from fedappeal.cli.main import main; sys.exit(main())"
_FREE = "--participation always --requirement fixed --mandatory-rounds 0 --evaluate-every 0"
COMMANDS = {
    "maxfl-100": "simulate --strategy maxfl --task fmnist --clients 100 --clients-per-round 5 --rounds 20",
    "maxfl-1000": "simulate --strategy maxfl --task fmnist --clients 1000 --clients-per-round 5 --rounds 5 "
    "--min-examples 1",
    "fedavg-1000": f"simulate --strategy fedavg --task fmnist {_FREE} --clients 1000 --local-steps 5 --rounds 5 "
    "--min-examples 1",
    "fedavg-10000": f"simulate --strategy fedavg --task fmnist {_FREE} --clients 10000 --clients-per-round 10 "
    "--rounds 2 --partition iid --min-examples 1",
    "cnn": f"simulate --strategy fedavg --task fmnist {_FREE} --clients 100 --clients-per-round 5 --model cnn "
    "--rounds 5",
    "local": "local --task digits --strategy maxfl --clients 10 --rounds 10",
}


def command(words: str, rounds: int = 0) -> Figures:
    """Run a command of the program; return seconds, CPU seconds, bytes of its run's folder, and the last loss."""
    options = [*words.split(), *(["--rounds", str(rounds)] if rounds else [])]
    options += ["--threads", "1"] if options[0] == "simulate" else []
    with tempfile.TemporaryDirectory(prefix="fedappeal-benchmark-") as scratch:
        folder, used, started = Path(scratch) / "run", children_cpu(), time.perf_counter()
        subprocess.run([sys.executable, "-c", PROGRAM, *options, "--out", str(folder)], check=True, stdout=sys.stderr)
        seconds, used = time.perf_counter() - started, children_cpu() - used
        lines = [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]
        size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    whole = {"whole s": seconds, "CPU s": used, "start s": seconds - sum(line["seconds"] for line in lines)}
    each = [float(line["seconds"]) for line in lines[1:]]
    return {**whole, "s": each, "bytes": size, "loss": f"{lines[-1]['loss']:.6f}"}


ROWS = {f"commands/{name}": Row({"now": partial(command, words)}, "now") for name, words in COMMANDS.items()}
