"""What a simulated run's clients cost where there are many: rounds, messages, start-up and files.

Each figure is CPU time (or memory, or bytes) of a process of its own with one PyTorch thread; the processes take
turns, and medians are printed. ``--before CHECKOUT`` runs each arm with the code of another checkout too, such as one
that ``git worktree add CHECKOUT COMMIT`` made.
``python benchmarks/many_clients.py evaluated|messages|start|huge|files --json FILE``
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

from machine import described

ROUNDS = 6
QUIET = {"strategy": "fedavg", "participation": "always", "requirement": "fixed", "mandatory-rounds": 0}
UNEVALUATED = {"evaluate-every": 0, "evaluate-train": False}
EVALUATED = {"task": "fmnist", "strategy": "maxfl", "clients-per-round": 5, "set": "solo.steps=5", "min-examples": 10}
ALL_TRAIN = {**QUIET, **UNEVALUATED, "task": "fmnist", "local-steps": 5, "min-examples": 10}
SYNTH = {"task": "synth", "model": "logistic", "set": "synth.examples=20", "min-examples": 1}

ARMS: dict[str, dict[str, dict[str, Any]]] = {
    "evaluated": {f"{n:,} clients": {**EVALUATED, "clients": n} for n in (250, 500, 1000)},
    "messages": {f"{n:,} clients": {**ALL_TRAIN, "clients": n} for n in (100, 1000)},
    "start": {
        "10,000 clients": {
            **{**QUIET, **UNEVALUATED, "task": "fmnist", "partition": "iid", "min-examples": 1},
            **{"clients": 10_000, "clients-per-round": 10},
        }
    },
    "huge": {"100,000 clients": {**QUIET, **UNEVALUATED, **SYNTH, "clients": 100_000, "clients-per-round": 10}},
}
"""By what is measured: settings of each arm."""

# -- one arm, in a process of its own ------------------------------------------------------------------------


@contextmanager
def timed(owner: Any, name: str, spent: list[float]) -> Iterator[None]:
    """Add the CPU seconds that a function or method uses to ``spent``; an earlier checkout may not have it."""
    if not hasattr(owner, name):
        yield
        return
    whole = getattr(owner, name)

    def measured(*given: Any, **named: Any) -> Any:
        started = time.process_time()
        try:
            return whole(*given, **named)
        finally:
            spent.append(time.process_time() - started)

    setattr(owner, name, measured)
    try:
        yield
    finally:
        setattr(owner, name, whole)


def simulated(settings: dict[str, Any]) -> dict[str, Any]:
    """Simulate a run: CPU seconds of its start and rounds, what of them is training, memory, bytes of its files."""
    import torch

    from fedappeal.record.run_folder import RunFolder
    from fedappeal.settings.config import RunConfig
    from fedappeal.simulation.engine import Simulation, simulate
    from fedappeal.simulation.forms.scheduler import BatchScheduler
    from fedappeal.tasks import partitioned
    from fedappeal.tasks.datasets.synth import Synth
    from strategies.rounds.sums.weighted_sum import WeightedSum

    torch.set_num_threads(1)
    config = RunConfig.parse({**settings, "rounds": ROUNDS})
    batches, sums, drawn, generated = list[float](), list[float](), list[float](), list[float]()
    marks: list[tuple[float, float, float]] = []
    generated_by, resident = list[float](), list[float]()

    def mark(record: object = None) -> None:
        generated_by.append(sum(generated))
        resident.append(resident_bytes())
        marks.append((time.process_time(), sum(batches), sum(sums)))

    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_CACHE_HOME"] = folder  # the partition is drawn
        run = RunFolder.create(Path(folder) / "run", config)
        with (
            timed(BatchScheduler, "_batch", batches),
            timed(WeightedSum, "add", sums),
            timed(partitioned, "assign", drawn),
            timed(Synth, "read", generated),
            timed(Synth, "read_client", generated),
        ):
            mark()
            simulate(config, run, Simulation("layers", threads=1), mark)
    rounds = [[b - a for a, b in zip(one, two, strict=True)] for one, two in pairwise(marks)]
    whole, training, adding = (statistics.median(each) for each in zip(*rounds[1:-1], strict=True))
    return {
        "start": rounds[0][0] - whole - generated_by[1],
        "partition": sum(drawn),
        "data": sum(generated),
        "round": whole,
        "training": training,
        "adding": adding,
        "resident MiB": peak_mib(),
        "bytes a client": (resident[1] - resident[0]) / config.clients,
        "decisions a round": config.clients_per_round or config.clients,
    }


def peak_mib() -> float:
    """Return the most memory that this process has had resident."""
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10


def resident_bytes() -> float:
    """Return the memory that this process has resident now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return float(pages * os.sysconf("SC_PAGE_SIZE"))


def files() -> dict[str, dict[str, float]]:
    """Return bytes a decision of a round with 10,000 clients, against a line a decision."""
    import numpy as np

    from fedappeal.record.decisions import packed

    draw, clients = np.random.default_rng(0), [f"client-{k:04d}" for k in range(10_000)]
    coins = dict(zip(clients, draw.choice(["joined", "sat-out"], len(clients)).tolist(), strict=True))
    half, few = (draw.choice(clients, number, replace=False).tolist() for number in (5000, 10))
    rounds = {
        "all of 10,000 join": dict.fromkeys(clients, "joined"),
        "each joins or sits out by a fair coin": coins,
        "half of them asked, by a fair coin": dict.fromkeys(half, "joined"),
        "10 asked": dict.fromkeys(few, "joined"),
    }
    found = {}
    for name, decisions in rounds.items():
        lines = [{"round": 1000, "client-id": k, "decision": v} for k, v in decisions.items()]
        before = sum(len(json.dumps(line)) + 1 for line in lines)
        now = len(json.dumps(packed(1000, decisions))) + 1
        found[name] = {"a line a decision": before / len(lines), "packed": now / len(lines)}
    return found


# -- all of them ---------------------------------------------------------------------------------------------


def measured(settings: dict[str, Any], tree: Path) -> dict[str, Any]:
    """Run one arm with a checkout's code."""
    done = subprocess.run(
        [sys.executable, __file__, "arm", "--settings", json.dumps(settings)],
        capture_output=True,
        text=True,
        cwd=tree,
        env={**os.environ, "PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1"},
    )
    if done.returncode:
        raise RuntimeError(done.stderr[-3000:])
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def rows(what: str, trees: dict[str, Path], repetitions: int) -> dict[str, dict[str, float]]:
    """Return medians by arm and checkout, all of them taking turns."""
    found: dict[str, list[dict[str, float]]] = {}
    for _ in range(repetitions):
        for arm, settings in ARMS[what].items():
            for name, tree in trees.items():
                found.setdefault(f"{arm}, {name}", []).append(measured(settings, tree))
    return {
        row: {key: statistics.median(each[key] for each in results) for key in results[0]}
        for row, results in found.items()
    }


def _evaluated(row: dict[str, float]) -> str:
    return f"round {row['round']:.3f} CPU-s"


def _messages(row: dict[str, float]) -> str:
    rest = row["round"] - row["training"] - row["adding"]
    each = 1e3 * rest / row["decisions a round"]
    return (
        f"round {row['round']:.3f} CPU-s: training {row['training']:.3f}, adding up {row['adding']:.3f}, "
        f"messages and the rest {rest:.3f} ({rest / row['round']:.0%}), {each:.2f} ms a client"
    )


def _start(row: dict[str, float]) -> str:
    return (
        f"start {row['start']:.1f} CPU-s, of them partition {row['partition']:.1f}; the data's generation besides "
        f"{row['data']:.1f}; round {row['round']:.3f}; resident {row['resident MiB']:.0f} MiB, "
        f"{row['bytes a client'] / 1024:.1f} KiB a client by the end of round 1, data and libraries in it"
    )


def _files(row: dict[str, float]) -> str:
    return f"{row['a line a decision']:.1f} bytes a decision as a line each, {row['packed']:.2f} packed"


SAID: dict[str, Callable[[dict[str, float]], str]] = {
    "evaluated": _evaluated,
    "messages": _messages,
    "start": _start,
    "huge": _start,
    "files": _files,
}


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=[*ARMS, "files", "arm"])
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--before", type=Path, help="another checkout, measured too")
    parser.add_argument("--settings", help="of an arm; for the script itself")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    if given.what == "arm":
        print(json.dumps(simulated(json.loads(given.settings))))
        return
    trees = {"before": given.before.resolve()} if given.before else {}
    trees["now"] = Path(__file__).resolve().parents[1]
    found = files() if given.what == "files" else rows(given.what, trees, given.repetitions)
    for name, row in found.items():
        print(f"{name}: {SAID[given.what](row)}")
    if given.json:
        given.json.write_text(json.dumps({**described(), given.what: found}, indent=2) + "\n")


if __name__ == "__main__":
    main()
