"""Simulated rounds: ours, a plain PyTorch loop, pfl-research, fluke and Flower's simulation.

Every arm does the same work (the same clients, data, model, local steps and batch size) on one PyTorch thread.
``many-clients`` is ours alone: in ``messages`` all clients train, ``start`` is about what comes before the first
round ends, the others compare numbers of clients. ``workers`` compares ``--workers``.
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

from benchmarks.runner import ROOT, BenchRow, Clock, Figures, command, design_of, peak_mib, row_size

Settings = Mapping[str, Any]

PEERS = "FEDAPPEAL_BENCHMARK_PEERS"
"""Environment variable: a checkout of commit c73b908, with `benchmarks/peers/requirements.txt` in its ``.venv``."""
PROGRAMS = {"pfl-research": "pfl_research.py", "fluke": "fluke_fl.py"}


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
    """Train and evaluate with a plain loop on the same batches of the same clients.

    Models are averaged by their numbers of examples. Where ours evaluates what a client makes of the model by its own
    steps, so does the loop.
    """
    import copy

    import torch
    from torch import nn

    from client.training.descent import descend
    from client.training.models import evaluate
    from client.training.requests import TrainingProblem
    from fedappeal.protocol.draws import Minibatches
    from fedappeal.settings.training import LocalTrainingSettings
    from fedappeal.tasks import load_task
    from fedappeal.tasks.examples import with_held_out
    from strategies.rounds.exchange.members import sampling_order

    torch.set_num_threads(1)
    config, clock = config_of(settings, rounds), Clock()
    task = load_task(config.task_settings())
    data = {f"client-{k:04d}": task.load(k) for k in range(config.clients)}
    if config.holds_out:
        data = {client: with_held_out(of_client) for client, of_client in data.items()}
    model, training = task.initial_model(config.seed), config.training
    own_steps = training.changed_by({"local-steps": config.adaptation_steps})

    def trained(client: str, server_round: int, training: LocalTrainingSettings) -> nn.Module:
        local, train = copy.deepcopy(model).train(), data[client].train
        steps = training.steps(len(train))
        batches = Minibatches(config.seed, client, server_round, len(train), steps, training.batch_size)
        descend(local, TrainingProblem(task, train, batches, training))
        return local

    accuracy = 0.0
    for server_round in range(1, rounds + 1):
        chosen = sampling_order(config.seed, server_round, list(data))[: config.clients_per_round or None]
        total = sum(len(data[client].train) for client in chosen)
        average = {name: torch.zeros_like(p) for name, p in model.state_dict().items()}
        for client in chosen:
            for name, p in trained(client, server_round, training).state_dict().items():
                average[name] += p * (len(data[client].train) / total)
        model.load_state_dict(average)
        if server_round == rounds or (config.evaluate_every and not server_round % config.evaluate_every):
            accuracy = sum(evaluate(task, model, of_client.test).score for of_client in data.values()) / len(data)
            for client, of_client in data.items():
                used = model
                if config.holds_out and config.adaptation_steps:
                    used = trained(client, 0, own_steps)
                    evaluate(task, used, of_client.test)
                if config.evaluate_train:
                    evaluate(task, used, of_client.held_out or of_client.train)
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


def peer(settings: Settings, program: str, rounds: int) -> Figures:
    """Run pfl-research or fluke by the programs in the checkout `PEERS`."""
    import torch

    from fedappeal.tasks import load_task

    config = config_of(settings, rounds)
    task = load_task(config.task_settings())
    data = [task.load(k) for k in range(config.clients)]
    setting = config.model_dump() | {"model": task.initial_model(config.seed)}
    setting |= {"clients_per_round": config.resolved_clients_per_round}
    setting |= {side: [(getattr(d, side).x, getattr(d, side).y) for d in data] for side in ("train", "test")}
    checkout = Path(os.environ[PEERS])
    with tempfile.TemporaryDirectory() as folder:
        torch.save(setting, file := f"{folder}/setting.pt")
        words = [str(checkout / ".venv/bin/python"), str(checkout / "benchmarks/peers" / program), file]
        done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True)
    figures: Figures = json.loads(done.stdout.strip().splitlines()[-1])
    return {key: value[1:-1] if isinstance(value, list) else value for key, value in figures.items()}


def workers(settings: Settings, number: int, rounds: int) -> Figures:
    """Run the command with this many workers."""
    words = (f"--{key} {value}" for key, value in settings.items() if value is not True)  # as they are by default
    return command(f"simulate {' '.join(words)} --mode layers --workers {number}", rounds)


def row(settings: Settings, arms: Iterable[str], over: str = "batched", by: str = "s", rounds: int = 20) -> BenchRow:
    """Return a row of these settings."""
    every = {
        "plain-loop": partial(plain, settings),
        "papers-loop": partial(plain, {**settings, "judge-on": "train", "adaptation-steps": 0}),
        **{mode: partial(ours, settings, mode) for mode in ("sequential", "batched", "vmap", "auto")},
        "flower": partial(flower, settings),
        **{name: partial(peer, settings, program) for name, program in PROGRAMS.items()},
        **{f"{n}-clients": partial(ours, {**settings, "clients": n}, "auto") for n in (250, 1000)},
        **{f"{n}-workers": partial(workers, settings, n) for n in (0, 1, 2)},
    }
    return BenchRow({arm: every[arm] for arm in arms}, over, by, rounds)


_DESIGN = design_of(__file__)


def settings_of(name: str) -> Settings:
    """Return a row's settings, with those of all or of a row like it."""
    facts = _DESIGN["rows"][name]
    return {**(settings_of(facts["like"]) if "like" in facts else _DESIGN["settings"]), **facts["settings"]}


ROWS = {
    name: row(settings_of(name), **{key: value for key, value in facts.items() if key not in ("like", "settings")})
    for name, facts in _DESIGN["rows"].items()
}
