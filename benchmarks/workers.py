"""Seconds a round where every client evaluates: a plain PyTorch loop, one process, and two workers.

MaxFL, 100 clients on Fashion-MNIST, 5 a round, all clients' test and train loss after each round. The plain loop does
the same work on one thread: it evaluates the model on each client's data, and trains as many clients as joined in our
run, on the batches that they would draw. Arms take turns; medians over the rounds of all repetitions, start-up apart
(the first round is no part of it).
``python benchmarks/workers.py --json FILE``
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

from machine import described

HERE = Path(__file__).resolve().parent
ARMS = {"plain loop": -1, "one process": 0, "one worker": 1, "two workers": 2}


def config_of(rounds: int) -> Any:
    """Return the settings of the run."""
    from fedappeal.settings.config import RunConfig

    settings: dict[str, Any] = {"strategy": "maxfl", "task": "fmnist", "clients": 100, "clients-per-round": 5}
    return RunConfig.parse({**settings, "requirement": "fixed", "rounds": rounds})


def ours(workers: int, rounds: int, mode: str) -> dict[str, Any]:
    """`fedappeal simulate --workers`, on one thread a process."""
    from fedappeal.record.run_folder import HISTORY, RunFolder, read_lines
    from fedappeal.simulation.engine import Simulation, simulate

    started, marks = time.perf_counter(), []
    config = config_of(rounds)
    with tempfile.TemporaryDirectory() as folder:
        run = RunFolder.create(Path(folder) / "run", config)
        how = Simulation(mode, threads=1, workers=workers, resumable=False)
        simulate(config, run, how, lambda record: marks.append(time.perf_counter()))
        last = read_lines(run.path / HISTORY)[-1]
    return {"start": marks[0] - started, "rounds": [b - a for a, b in pairwise(marks)], "loss": last["loss"]}


def plain(rounds: int) -> dict[str, Any]:
    """A loop over clients as one would write it by hand."""
    import copy

    import torch

    from client.training.descent import descend
    from client.training.models import evaluate
    from client.training.problem import TrainingProblem
    from fedappeal.core.training_settings import LocalTrainingSettings
    from fedappeal.protocol.draws import batch_indices
    from fedappeal.tasks import load_task
    from strategies.maxfl import appeal_weight
    from strategies.rounds.exchange.sampling import sampling_order

    torch.set_num_threads(1)
    config = config_of(rounds)
    started, marks = time.perf_counter(), []
    task = load_task(config.task_settings())
    data = [task.load(k) for k in range(config.clients)]
    model = task.initial_model(config.seed)
    names = {f"client-{k:04d}": k for k in range(config.clients)}
    training = LocalTrainingSettings.of(config.as_config())
    losses = [0.0] * config.clients
    test = 0.0
    for server_round in range(1, rounds + 1):
        chosen = sampling_order(config.seed, server_round, list(names))[: config.clients_per_round]
        moved = {name: torch.zeros_like(p) for name, p in model.state_dict().items()}
        whole = 1e-3
        for client in chosen:
            own, train = copy.deepcopy(model).train(), data[names[client]].train
            steps = training.steps(len(train))
            batches = batch_indices(config.seed, client, server_round, len(train), steps, training.batch_size)
            descend(own, TrainingProblem(task, train, batches, training))
            weight = appeal_weight(losses[names[client]], 1.0)
            whole += weight
            for (name, p), (_, before) in zip(own.state_dict().items(), model.state_dict().items(), strict=True):
                moved[name] += weight * (p - before)
        model.load_state_dict({name: p + moved[name] / whole for name, p in model.state_dict().items()})
        losses = [evaluate(task, model, each.train).loss for each in data]
        test = statistics.fmean(evaluate(task, model, each.test).loss for each in data)
        marks.append(time.perf_counter())
    return {"start": marks[0] - started, "rounds": [b - a for a, b in pairwise(marks)], "loss": test}


def main() -> None:
    """Run all arms in turn and print their medians."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="file for the figures")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--mode", default="layers", help="how clients train: the same in each of our arms")
    parser.add_argument("--arm", choices=list(ARMS))
    given = parser.parse_args()
    if given.arm:
        workers = ARMS[given.arm]
        print(json.dumps(plain(given.rounds) if workers < 0 else ours(workers, given.rounds, given.mode)))
        return
    found: dict[str, list[dict[str, Any]]] = {arm: [] for arm in ARMS}
    for _ in range(given.repetitions):
        for arm in ARMS:
            command = [sys.executable, str(HERE / "workers.py"), "--arm", arm, "--mode", given.mode]
            done = subprocess.run([*command, "--rounds", str(given.rounds)], capture_output=True, text=True)
            if done.returncode:
                print(f"{arm}: {done.stderr.strip().splitlines()[-1]}", file=sys.stderr)
                continue
            found[arm].append(json.loads(done.stdout.splitlines()[-1]))
    rounds = {
        arm: statistics.median(seconds for each in runs for seconds in each["rounds"])
        for arm, runs in found.items()
        if runs
    }
    for arm, seconds in rounds.items():
        start = statistics.median(each["start"] for each in found[arm])
        ratio = seconds / rounds["plain loop"]
        print(f"{arm:12} {1000 * seconds:7.1f} ms a round, {ratio:.2f} of the plain loop; start {start:.1f} s")
    if given.json:
        given.json.write_text(json.dumps({**described(), "rounds": given.rounds, "arms": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
