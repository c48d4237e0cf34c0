"""Seconds a round of simulated federations: ours, a plain PyTorch loop, pfl-research, fluke and Flower's simulation.

Every arm does the same work (FedAvg, the same clients, data, model, local steps and batch size) in a process of its
own with one PyTorch thread; arms take turns, and medians over all rounds of all repetitions are reported, start-up
apart. Absolute figures say little on a shared machine: read the ratios.
``python benchmarks/simulation.py --json FILE``
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

from machine import described
from peer_programs import PEERS, peer, peer_python, write_data

HERE = Path(__file__).resolve().parent
ROUNDS = 20
FLOWER_ROUNDS = 6
FLOWER_REPETITIONS = 2
"""Its start-up takes a minute."""

ROWS: dict[str, dict[str, Any]] = {
    "mlp": {"task": "fmnist", "clients": 100, "clients-per-round": 5, "evaluate-every": 0},
    "mlp, all evaluated": {"task": "fmnist", "clients": 100, "clients-per-round": 5, "evaluate-every": 1},
    "logistic, all train": {
        **{"task": "fmnist", "model": "logistic", "clients": 60, "evaluate-every": 0},
        **{"local-steps": 0, "local-epochs": 5},
    },
    "cnn": {"task": "fmnist", "model": "cnn", "clients": 100, "clients-per-round": 5, "evaluate-every": 0},
    "growth 100": {"task": "fmnist", "clients": 100, "clients-per-round": 10, "evaluate-every": 0},
    "growth 1000": {"task": "fmnist", "clients": 1000, "clients-per-round": 10, "evaluate-every": 0},
    "growth 10000": {
        **{"task": "fmnist", "clients": 10_000, "clients-per-round": 10, "evaluate-every": 0},
        **{"partition": "iid", "min-examples": 1},
    },
}


def config_of(row: str, rounds: int, out: str = "") -> Any:
    """Return the settings of a row: plain FedAvg, no client opts out, no requirement to warm up for."""
    from fedappeal.settings.config import RunConfig

    shared = {"strategy": "fedavg", "participation": "always", "requirement": "fixed", "mandatory-rounds": 0}
    shared |= {"evaluate-train": False}  # the peers evaluate test examples only
    return RunConfig.parse({**shared, **ROWS[row], "rounds": rounds, "out": out})


# -- arms that run in this program ---------------------------------------------------------------------------


def ours(row: str, mode: str, rounds: int, threads: int = 1) -> dict[str, Any]:
    """`fedappeal simulate`, in batches (``batched``) or one client after another (``sequential``)."""
    import psutil

    from fedappeal.record.run_folder import HISTORY, RunFolder, read_lines
    from fedappeal.simulation.engine import Simulation, simulate

    config, marks = config_of(row, rounds), [time.perf_counter()]
    cpu = [time.process_time()]
    memory = psutil.Process()

    def on_round(record: object) -> None:
        marks.append(time.perf_counter())
        cpu.append(time.process_time())

    with tempfile.TemporaryDirectory() as folder:
        run = RunFolder.create(Path(folder) / "run", config)
        simulate(config, run, Simulation(mode, threads=threads), on_round)
        accuracy = read_lines(run.path / HISTORY)[-1]["accuracy"]
    result = _result(marks, cpu, accuracy)
    return result | {"resident_mib": memory.memory_info().rss / 2**20}


def plain(row: str, rounds: int) -> dict[str, Any]:
    """A loop over clients as one would write it by hand, on the same batches of the same sampled clients."""
    import copy

    import torch

    from client.training.descent import descend
    from client.training.models import evaluate
    from client.training.problem import TrainingProblem
    from fedappeal.core.training_settings import LocalTrainingSettings
    from fedappeal.protocol.draws import batch_indices
    from fedappeal.tasks import load_task
    from strategies.rounds.exchange.sampling import sampling_order

    torch.set_num_threads(1)
    config = config_of(row, rounds)
    task = load_task(config.task_settings())
    marks, cpu = [time.perf_counter()], [time.process_time()]
    data = [task.load(k) for k in range(config.clients)]
    model = task.initial_model(config.seed)
    names = {f"client-{k:04d}": k for k in range(config.clients)}
    training = LocalTrainingSettings.of(config.as_config())
    accuracy = 0.0
    for server_round in range(1, rounds + 1):
        chosen = sampling_order(config.seed, server_round, list(names))[: config.clients_per_round or None]
        total = sum(len(data[names[c]].train) for c in chosen)
        average = {name: torch.zeros_like(p) for name, p in model.state_dict().items()}
        for client in chosen:
            own, train = copy.deepcopy(model).train(), data[names[client]].train
            steps = training.steps(len(train))
            batches = batch_indices(config.seed, client, server_round, len(train), steps, training.batch_size)
            descend(own, TrainingProblem(task, train, batches, training))
            for name, p in own.state_dict().items():
                average[name] += p * (len(train) / total)
        model.load_state_dict(average)
        if server_round == rounds or (config.evaluate_every and not server_round % config.evaluate_every):
            found = [evaluate(task, model, d.test).score for d in data]
            accuracy = sum(found) / len(found)
            if config.evaluate_train:
                for d in data:
                    evaluate(task, model, d.train)
        marks.append(time.perf_counter())
        cpu.append(time.process_time())
    return _result(marks, cpu, accuracy)


def floor(row: str, rounds: int) -> dict[str, Any]:
    """The batched products of the multi-layer perceptron alone: forward, and backward without the input's."""
    import torch

    torch.set_num_threads(1)
    clients, batch, widths = 5, 32, (784, 64, 30, 10)
    weights = [torch.randn(clients, b, a) for a, b in pairwise(widths)]
    values = [torch.randn(clients, batch, width) for width in widths]
    marks, cpu = [time.perf_counter()], [time.process_time()]
    for _ in range(rounds + 1):
        for _ in range(30):
            for i, weight in enumerate(weights):
                torch.bmm(values[i], weight.transpose(1, 2))
                torch.bmm(values[i + 1].transpose(1, 2), values[i])
                if i:
                    torch.bmm(values[i + 1], weight)
        marks.append(time.perf_counter())
        cpu.append(time.process_time())
    return _result(marks, cpu, None)


def flower(row: str, rounds: int) -> dict[str, Any]:
    """Flower's simulation runtime (Ray) on all cores, through the same apps: ``flwr run``."""
    from fedappeal.federation.superlink import SuperLink
    from fedappeal.flower.processes import QUIET
    from fedappeal.record.run_folder import HISTORY, read_lines

    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        config = config_of(row, FLOWER_ROUNDS, str(root / "run"))
        with SuperLink(root / "superlink", simulation=True, environment={"OMP_NUM_THREADS": "1"}) as superlink:
            (root / "home").mkdir()
            (root / "home" / "config.toml").write_text(
                f'[superlink]\ndefault = "sim"\n[superlink.sim]\naddress = "{superlink.control_address}"\n'
                "insecure = true\n"
            )
            settings = {key: value for key, value in config.as_config().items() if key != "resume"}
            written = " ".join(f"{key}={json.dumps(value)}" for key, value in settings.items())
            started = time.perf_counter()
            done = subprocess.run(
                [
                    *(str(Path(sys.executable).parent / "flwr"), "run", str(HERE.parent), "sim", "--stream"),
                    *("--federation-config", f"num-supernodes={config.clients} client-resources-num-cpus=1"),
                    *("-c", written),
                ],
                capture_output=True,
                text=True,
                env={**os.environ, **QUIET, "FLWR_HOME": str(root / "home")},
            )
            whole = time.perf_counter() - started
        lines = read_lines(root / "run" / HISTORY)
        if len(lines) < FLOWER_ROUNDS:
            raise RuntimeError(f"the run ended after {len(lines)} rounds: {(done.stdout + done.stderr)[-2000:]}")
        seconds = [float(line["seconds"]) for line in lines]
        used = seconds if config.evaluate_every else seconds[:-1]
        return {"seconds": used, "startup": whole - sum(seconds), "accuracy": lines[-1]["accuracy"]}


def _result(marks: list[float], cpu: list[float], accuracy: float | None) -> dict[str, Any]:
    """Return seconds of all rounds but the first, which holds start-up, and the last, which always evaluates."""
    seconds = [b - a for a, b in pairwise(marks)]
    used = [b - a for a, b in pairwise(cpu)]
    return {"seconds": seconds[1:-1], "cpu": used[1:-1], "startup": seconds[0], "accuracy": accuracy}


ARMS: dict[str, Callable[[str, int], dict[str, Any]]] = {
    "plain loop": plain,
    "ours, sequential": lambda row, rounds: ours(row, "sequential", rounds),
    "ours, batched": lambda row, rounds: ours(row, "batched", rounds),
    "ours, auto": lambda row, rounds: ours(row, "auto", rounds),
    "floor": floor,
    "Flower": flower,
}


def _arms_of(row: str) -> list[str]:
    if row.startswith("growth"):
        return ["ours, batched"]
    if row.startswith("mlp"):
        return [
            "plain loop",
            "ours, sequential",
            "ours, batched",
            *(["floor"] if row == "mlp" else []),
            *PEERS,
            "Flower",
        ]
    return ["plain loop", "ours, sequential", "ours, batched", *(["pfl", "fluke"] if row == "cnn" else []), "Flower"]


def in_a_process(arm: str, row: str, rounds: int, script: str = __file__) -> dict[str, Any]:
    """Return what an arm measures in a process of its own, on one thread."""
    command = [sys.executable, script, "--arm", arm, "--row", row, "--rounds", str(rounds)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    if done.returncode:
        raise RuntimeError(f"{arm} failed on {row}: {done.stderr[-3000:]}")
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def main() -> None:
    """Measure and print the tables; write JSON where asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="file for the figures")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="rounds of each run")
    parser.add_argument("--rows", default=";".join(ROWS), help="which rows, by semicolons")
    parser.add_argument("--peers", type=Path, help="folder of the peers' environment; made where it is missing")
    parser.add_argument("--arm", help=argparse.SUPPRESS)
    parser.add_argument("--row", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.arm:
        print(json.dumps(ARMS[arguments.arm](arguments.row, arguments.rounds)))
        return

    report: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="fedappeal-benchmark-") as scratch:
        python = peer_python(arguments.peers or Path(scratch) / "peers")
        for row in arguments.rows.split(";"):
            data = Path(scratch) / "data.npz"
            runs: dict[str, list[dict[str, Any]]] = {arm: [] for arm in _arms_of(row)}
            if set(runs) & set(PEERS):
                write_data(config_of(row, 1), data)
            for repetition in range(arguments.repetitions):
                for arm, found in runs.items():
                    if arm == "Flower" and repetition >= FLOWER_REPETITIONS:
                        continue
                    if arm in PEERS:
                        found.append(peer(arm, config_of(row, arguments.rounds), python, data))
                    else:
                        found.append(in_a_process(arm, row, arguments.rounds))
            report += _table(row, runs)
            if arguments.json:  # after each row: a long benchmark that is stopped leaves what it has
                arguments.json.write_text(json.dumps({**described(), "rows": report}, indent=2) + "\n")


def _table(row: str, runs: dict[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    medians = {arm: statistics.median(s for run in found for s in run["seconds"]) for arm, found in runs.items()}
    ours_batched = medians["ours, batched"]
    print(f"\n{row:<22}{'ms a round':>11}{'CPU ms':>9}{'/ ours':>8}{'start-up s':>12}{'accuracy':>10}{'MiB':>7}")
    lines = []
    for arm, found in runs.items():
        spent = [c for run in found for c in run.get("cpu", [])]
        cpu = statistics.median(spent) if spent else None
        startup = statistics.median(run["startup"] for run in found)
        accuracy, resident = found[-1]["accuracy"], found[-1].get("resident_mib")
        print(
            f"{arm:<22}{1e3 * medians[arm]:>11.1f}{'' if cpu is None else f'{1e3 * cpu:.1f}':>9}"
            f"{medians[arm] / ours_batched:>8.2f}{startup:>12.1f}"
            f"{'' if accuracy is None else f'{100 * accuracy:.1f} %':>10}"
            f"{'' if resident is None else f'{resident:.0f}':>7}",
            flush=True,
        )
        lines.append(
            {
                "row": row,
                "arm": arm,
                "median_seconds": medians[arm],
                "median_cpu_seconds": cpu,
                "startup_seconds": startup,
                "accuracy": accuracy,
                "resident_mib": resident,
                "samples": [run["seconds"] for run in found],
            }
        )
    return lines


if __name__ == "__main__":
    main()
