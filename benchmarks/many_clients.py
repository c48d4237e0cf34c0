"""What a simulated run's clients cost where there are many: rounds, messages, start-up and files, in CPU time.

``evaluated``: MaxFL, where every client is asked each round how the model serves it. ``messages``: all clients train;
what is neither training nor adding up is messages and the rest. ``start`` and ``huge``: until the first round; memory
holds data and libraries. ``files``: bytes a decision in a round with 10,000 clients.
"""

import json
import os
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.run import Figures, Row, peak_mib

_QUIET = {"strategy": "fedavg", "participation": "always", "requirement": "fixed", "mandatory-rounds": 0}
_QUIET |= {"evaluate-every": 0, "evaluate-train": False}
_EVALUATED = {
    "task": "fmnist",
    "strategy": "maxfl",
    "clients-per-round": 5,
    "min-examples": 10,
    "set": "solo.steps=5",
}
_ALL_TRAIN = {**_QUIET, "task": "fmnist", "local-steps": 5, "min-examples": 10}
_START = {**_QUIET, "task": "fmnist", "partition": "iid", "min-examples": 1, "clients-per-round": 10}
_HUGE = {**_START, "task": "synth", "model": "logistic", "set": "synth.examples=20"}


@contextmanager
def spent(owner: Any, name: str, seconds: list[float]) -> Iterator[None]:
    """Add the CPU seconds of a function's or method's calls; an earlier checkout may not have it."""
    whole = getattr(owner, name, None)

    def measured(*given: Any, **named: Any) -> Any:
        started = time.process_time()
        try:
            return whole(*given, **named)  # type: ignore[misc]
        finally:
            seconds.append(time.process_time() - started)

    if whole is not None:
        setattr(owner, name, measured)
    yield


def simulated(settings: Mapping[str, Any], clients: int, rounds: int) -> Figures:
    """Simulate a run; return the CPU seconds of its start and rounds, what of them is training, and memory."""
    import torch

    from fedappeal.runs.plan import RunPlan
    from fedappeal.settings.config import RunConfig
    from fedappeal.simulation.engine import simulate
    from fedappeal.simulation.forms.scheduler import BatchScheduler
    from fedappeal.simulation.options import Simulation
    from fedappeal.tasks import labelled
    from fedappeal.tasks.datasets.synth import Synth
    from strategies.rounds.sums.weighted_sum import WeightedSum

    torch.set_num_threads(1)
    config = RunConfig.parse({**settings, "clients": clients, "rounds": rounds})
    batches, sums, drawn, generated = list[float](), list[float](), list[float](), list[float]()
    marks: list[tuple[float, ...]] = []

    def mark(record: object = None) -> None:
        marks.append((time.process_time(), sum(batches), sum(sums), sum(generated), peak_mib("VmRSS")))

    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_CACHE_HOME"] = folder  # the partition is drawn
        run = RunPlan.of(config, Path(folder) / "run").folder({})
        with (
            spent(BatchScheduler, "_batch", batches),
            spent(WeightedSum, "add", sums),
            spent(labelled, "assign", drawn),
            spent(Synth, "read", generated),
            spent(Synth, "read_client", generated),
        ):
            mark()
            simulate(config, run, Simulation("layers", threads=1), mark)
    parts = [[b - a for a, b in zip(one, two, strict=True)] for one, two in pairwise(marks)]
    whole, training, adding = (statistics.median(each) for each in list(zip(*parts[1:-1], strict=True))[:3])
    rest = whole - training - adding
    of_round = {"CPU s": whole, "training": training, "adding up": adding, "rest": rest}
    each_ms = 1e3 * rest / (config.clients_per_round or clients)
    of_start = {"start": parts[0][0] - whole - parts[0][3], "partition": sum(drawn), "data": sum(generated)}
    kib = 1024 * parts[0][4] / clients
    return {**of_round, "rest, ms a client": each_ms, **of_start, "MiB": peak_mib(), "KiB a client": kib}


def files(packing: bool, rounds: int) -> Figures:
    """Return bytes a decision, packed as a run writes them or in a line each."""
    import numpy as np

    from fedappeal.record.decisions import packed

    draw, clients = np.random.default_rng(0), [f"client-{k:04d}" for k in range(10_000)]
    coins = dict(zip(clients, draw.choice(["joined", "sat-out"], len(clients)).tolist(), strict=True))
    half, few = (draw.choice(clients, number, replace=False).tolist() for number in (5000, 10))
    decided = {"all join": dict.fromkeys(clients, "joined"), "a fair coin each": coins}
    decided |= {"half are asked": dict.fromkeys(half, "joined"), "10 are asked": dict.fromkeys(few, "joined")}
    found: dict[str, float] = {}
    for name, decisions in decided.items():
        lines: list[Any] = [{"round": 1000, "client-id": k, "decision": v} for k, v in decisions.items()]
        written = [packed(1000, decisions)] if packing else lines
        found[name] = sum(len(json.dumps(line)) + 1 for line in written) / len(lines)
    return found


ROWS = {
    **{
        f"many-clients/evaluated-{n}": Row({"now": partial(simulated, _EVALUATED, n)}, "now", rounds=6)
        for n in (250, 500, 1000)
    },
    **{
        f"many-clients/messages-{n}": Row({"now": partial(simulated, _ALL_TRAIN, n)}, "now", rounds=6)
        for n in (100, 1000)
    },
    "many-clients/start": Row({"now": partial(simulated, _START, 10_000)}, "now", "start", 6),
    "many-clients/huge": Row({"now": partial(simulated, _HUGE, 100_000)}, "now", "start", 6),
    "many-clients/files": Row(
        {"packed": partial(files, True), "a line a decision": partial(files, False)}, "a line a decision", "all join"
    ),
}
