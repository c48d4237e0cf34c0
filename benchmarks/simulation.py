"""Simulated rounds: ours, a plain PyTorch loop, and Flower's simulation.

Every arm does the same work (the same clients, data, model, local steps and batch size) on one PyTorch thread.
``many-clients`` is ours alone: in ``messages`` all clients train, ``start`` is about what comes before the first
round ends. ``workers`` compares ``--workers``.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.commands import command
from benchmarks.runner import ROOT, BenchRow, Clock, Figures, design_of, peak_mib, row_size

Settings = Mapping[str, Any]

_WORKERS = "simulate --task fmnist --strategy maxfl --clients 100 --clients-per-round 5 --requirement fixed"


def config_of(settings: Settings, rounds: int, **more: Any) -> Any:
    """Return the run settings of a row."""
    from fedappeal.settings.config import RunConfig

    return RunConfig.parse({**settings, **more, "rounds": rounds, "clients": row_size(settings["clients"])})


def ours(settings: Settings, mode: str, rounds: int) -> Figures:
    """Simulate in the mode ``batched``, ``sequential``, or as chosen automatically."""
    import fedappeal

    arguments = {key.replace("-", "_"): value for key, value in settings.items()}
    arguments |= {"rounds": rounds, "clients": row_size(settings["clients"])}
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_CACHE_HOME"] = folder  # the partition is drawn
        clock, out = Clock(), f"{folder}/run"
        run = fedappeal.simulate(**arguments, mode=mode, threads=1, out=out, quiet=True, on_round=clock.mark)
        accuracy = run.summary()["accuracy"]
    return {**clock.rounds(), "accuracy": accuracy, "MiB": peak_mib()}


def plain(settings: Settings, rounds: int) -> Figures:
    """Train with a plain loop on the same batches of the same clients.

    Models are averaged by their numbers of examples.
    """
    import copy

    import torch

    from client.training.descent import descend
    from client.training.models import evaluate
    from client.training.requests import TrainingProblem
    from fedappeal.core.local_rule import LocalTrainingSettings
    from fedappeal.protocol.draws import batch_indices
    from fedappeal.tasks import load_task
    from strategies.rounds.exchange.members import sampling_order

    torch.set_num_threads(1)
    config, clock = config_of(settings, rounds), Clock()
    task = load_task(config.task_settings())
    data = [task.load(k) for k in range(config.clients)]
    model, training = task.initial_model(config.seed), LocalTrainingSettings.of(config.as_config())
    names = {f"client-{k:04d}": k for k in range(config.clients)}
    accuracy = 0.0
    for server_round in range(1, rounds + 1):
        chosen = sampling_order(config.seed, server_round, list(names))[: config.clients_per_round or None]
        total = sum(len(data[names[client]].train) for client in chosen)
        average = {name: torch.zeros_like(p) for name, p in model.state_dict().items()}
        for client in chosen:
            local, train = copy.deepcopy(model).train(), data[names[client]].train
            steps = training.steps(len(train))
            batches = batch_indices(config.seed, client, server_round, len(train), steps, training.batch_size)
            descend(local, TrainingProblem(task, train, batches, training))
            for name, p in local.state_dict().items():
                average[name] += p * (len(train) / total)
        model.load_state_dict(average)
        if server_round == rounds or (config.evaluate_every and not server_round % config.evaluate_every):
            accuracy = sum(evaluate(task, model, of_client.test).score for of_client in data) / len(data)
            for of_client in data if config.evaluate_train else ():
                evaluate(task, model, of_client.train)
        clock.mark()
    return {**clock.rounds(), "accuracy": accuracy}


def flower(settings: Settings, rounds: int) -> Figures:
    """Run Flower's simulation runtime (Ray, ``flwr run``) on all cores, with the same apps.

    At most 6 rounds.
    """
    from fedappeal.federation.superlink import SuperLink
    from fedappeal.flower.processes import QUIET
    from fedappeal.record.reader import Record

    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        config = config_of(settings, min(rounds, 6), out=str(root / "run"))
        options, environment = ("--insecure", "--simulation"), {"OMP_NUM_THREADS": "1"}
        with SuperLink(root / "superlink", options, environment=environment) as superlink:
            connection = f'[superlink]\ndefault = "sim"\n[superlink.sim]\naddress = "{superlink.control_address}"\n'
            (root / "config.toml").write_text(f"{connection}insecure = true\n", "utf-8")
            written = (f"{key}={json.dumps(value)}" for key, value in config.as_config().items() if key != "resume")
            flwr = [str(Path(sys.executable).parent / "flwr"), "run", str(ROOT), "sim", "--stream"]
            nodes = f"num-supernodes={config.clients} client-resources-num-cpus=1"
            environment, started = {**os.environ, **QUIET, "FLWR_HOME": folder}, time.perf_counter()
            words = [*flwr, "--federation-config", nodes, "-c", " ".join(written)]
            subprocess.run(words, check=True, stdout=sys.stderr, env=environment)
            whole = time.perf_counter() - started
        lines = Record(root / "run").history
    seconds = [float(line["seconds"]) for line in lines]
    used = seconds if config.evaluate_every else seconds[:-1]
    return {"s": used, "start s": whole - sum(seconds), "accuracy": lines[-1]["accuracy"]}


def row(settings: Settings, arms: Iterable[str], over: str = "batched", by: str = "s", rounds: int = 20) -> BenchRow:
    """Return a row of these settings."""
    every = {
        "plain loop": partial(plain, settings),
        **{mode: partial(ours, settings, mode) for mode in ("sequential", "batched", "vmap", "auto")},
        "Flower": partial(flower, settings),
        **{f"{n} workers": partial(command, f"{_WORKERS} --mode layers --workers {n}") for n in (0, 1, 2)},
    }
    return BenchRow({arm: every[arm] for arm in arms}, over, by, rounds)


_DESIGN = design_of(__file__)
ROWS = {
    name: row(**{**facts, "settings": {**_DESIGN["settings"], **facts["settings"]}})
    for name, facts in _DESIGN["rows"].items()
}
