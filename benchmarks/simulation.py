"""Simulated rounds: ours, a plain PyTorch loop, pfl-research, fluke and Flower's simulation.

Every arm does the same work (the same clients, data, model, local steps and batch size) on one PyTorch thread. The
rows of ``published`` are benchmarks of others, on generated pixels (`tasks`): FLUTE's logistic regression (1,000
clients, 10 a round, batches of 10, 1 epoch; https://github.com/microsoft/msrflute, README, "Benchmarking") and
pfl-research's CIFAR-10, IID (https://github.com/apple/pfl-research,
benchmarks/image_classification/configs/baseline.yaml), without its central evaluation. ``busy`` has a busy loop a
core beside it, and compares PyTorch's default threads; ``workers`` compares `fedappeal simulate --workers`.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.commands import command
from benchmarks.run import PEERS, ROOT, Clock, Figures, Row, peak_mib

Settings = Mapping[str, Any]

HERE = Path(__file__).resolve().parent
PROGRAMS = {"pfl": "pfl_research.py", "fluke": "fluke_fl.py"}
MODELS = {"benchmarks.tasks:MnistPixels": "logistic", "benchmarks.tasks:CifarPixels": "cifar-pixels"}
"""The models that are a task's own, by the peers' names."""

_PLAIN = {"strategy": "fedavg", "participation": "always", "requirement": "fixed", "mandatory-rounds": 0}
_PLAIN |= {"evaluate-train": False}  # the peers evaluate test examples only
_FMNIST = {**_PLAIN, "task": "fmnist", "clients": 100, "clients-per-round": 5, "evaluate-every": 0}
_OTHERS = {**_PLAIN, "clients": 1000, "batch-size": 10, "min-examples": 1}  # an epoch in steps: 60 and 50 by 10
_FEW = {"task": "benchmarks.tasks:MnistPixels", "clients-per-round": 10, "local-steps": 6, "learning-rate": 0.03}
_MANY = {"task": "benchmarks.tasks:CifarPixels", "clients-per-round": 50, "local-steps": 5, "learning-rate": 0.1}
_MAXFL = {
    **_PLAIN,
    "task": "fmnist",
    "strategy": "maxfl",
    "clients": 100,
    "clients-per-round": 5,
    "evaluate-every": 1,
}
_ALL = ("plain loop", "sequential", "batched", "pfl", "fluke", "Flower")
_OURS = "batched"


def config_of(settings: Settings, rounds: int, **more: Any) -> Any:
    """Return a row's settings as a run's."""
    from fedappeal.settings.config import RunConfig

    return RunConfig.parse({**settings, **more, "rounds": rounds})


def ours(settings: Settings, mode: str, rounds: int, threads: int = 1) -> Figures:
    """Simulate, in batches (``batched``), one client after another (``sequential``) or as chosen (``auto``)."""
    import fedappeal

    given = {key.replace("-", "_"): value for key, value in settings.items()}
    with tempfile.TemporaryDirectory() as folder:
        clock = Clock()
        out = f"{folder}/run"
        how: dict[str, Any] = {"mode": mode, "threads": threads, "out": out, "quiet": True, "on_round": clock.mark}
        fedappeal.simulate(**given, rounds=rounds, **how)
        (*_, last) = (Path(out) / "history.jsonl").read_text().splitlines()
    return {**clock.rounds(), "accuracy": json.loads(last)["accuracy"], "MiB": peak_mib("VmRSS")}


def plain(settings: Settings, rounds: int) -> Figures:
    """Train as one would write it by hand, on the same batches of the same clients; models averaged by examples."""
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
        total = sum(len(data[names[c]].train) for c in chosen)
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
            accuracy = sum(evaluate(task, model, d.test).score for d in data) / len(data)
            for d in data if config.evaluate_train else ():
                evaluate(task, model, d.train)
        clock.mark()
    return {**clock.rounds(), "accuracy": accuracy}


def floor(rounds: int) -> Figures:
    """Do the batched products of the multi-layer perceptron alone: forward, and backward without the input's."""
    import torch

    torch.set_num_threads(1)
    clients, batch, widths = 5, 32, (784, 64, 30, 10)
    weights = [torch.randn(clients, b, a) for a, b in pairwise(widths)]
    values = [torch.randn(clients, batch, width) for width in widths]
    clock = Clock()
    for _ in range(rounds):
        for _ in range(30):
            for i, weight in enumerate(weights):
                torch.bmm(values[i], weight.transpose(1, 2))
                torch.bmm(values[i + 1].transpose(1, 2), values[i])
                if i:
                    torch.bmm(values[i + 1], weight)
        clock.mark()
    return clock.rounds()


def flower(settings: Settings, rounds: int) -> Figures:
    """Run Flower's simulation runtime (Ray) on all cores, through the same apps: ``flwr run``; at most 6 rounds."""
    from fedappeal.federation.superlink import SuperLink
    from fedappeal.flower.processes import QUIET

    with tempfile.TemporaryDirectory() as folder:
        root, rounds = Path(folder), min(rounds, 6)
        config = config_of(settings, rounds, out=str(root / "run"))
        with SuperLink(root / "superlink", simulation=True, environment={"OMP_NUM_THREADS": "1"}) as superlink:
            (root / "home").mkdir()
            (root / "home" / "config.toml").write_text(
                f'[superlink]\ndefault = "sim"\n[superlink.sim]\naddress = "{superlink.control_address}"\n'
                "insecure = true\n"
            )
            written = (f"{key}={json.dumps(value)}" for key, value in config.as_config().items() if key != "resume")
            flwr = [str(Path(sys.executable).parent / "flwr"), "run", str(ROOT), "sim", "--stream"]
            federation = f"num-supernodes={config.clients} client-resources-num-cpus=1"
            environment = {**os.environ, **QUIET, "FLWR_HOME": str(root / "home")}
            started = time.perf_counter()
            command = [*flwr, "--federation-config", federation, "-c", " ".join(written)]
            subprocess.run(command, check=True, stdout=sys.stderr, env=environment)
            whole = time.perf_counter() - started
        lines = [json.loads(line) for line in (root / "run" / "history.jsonl").read_text().splitlines()]
    seconds = [float(line["seconds"]) for line in lines]
    used = seconds if config.evaluate_every else seconds[:-1]
    return {"s": used, "start s": whole - sum(seconds), "accuracy": lines[-1]["accuracy"]}


def peer(name: str, settings: Settings, rounds: int) -> Figures:
    """Run pfl-research or fluke in their own environment; its program prints what it measured."""
    import numpy as np

    from fedappeal.tasks import load_task

    config = config_of(settings, rounds)
    task = load_task(config.task_settings())
    initial = enumerate(task.initial_model(config.seed).parameters())
    arrays: dict[str, Any] = {f"p{i}": p.detach().numpy() for i, p in initial}
    for k in range(config.clients):
        data = task.load(k)
        arrays |= {f"x{k}": data.train.x.numpy(), f"y{k}": data.train.y.numpy()}
        arrays |= {f"tx{k}": data.test.x.numpy(), f"ty{k}": data.test.y.numpy()}
    options = {
        "model": MODELS.get(config.task) or ("mlp" if config.model == "auto" else config.model),
        "clients-per-round": config.clients_per_round or config.clients,
        "rounds": rounds,
        "local-steps": config.local_steps,
        "batch-size": config.batch_size,
        "learning-rate": config.learning_rate,
        "evaluate-every": config.evaluate_every,
        "seed": config.seed,
    }
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "data.npz"
        np.savez(file, **arrays)
        words = [word for key, value in options.items() for word in (f"--{key}", str(value))]
        program = [str(peers_python()), str(HERE / "peers" / PROGRAMS[name]), str(file), *words]
        done = subprocess.run(program, stdout=subprocess.PIPE, text=True, check=True)
    found: Figures = json.loads(done.stdout.strip().splitlines()[-1])
    return {key: value[1:-1] if isinstance(value, list) else value for key, value in found.items()}


def peers_python() -> Path:
    """Set up the peers' environment, once; return its Python."""
    folder = Path(os.environ.get(PEERS) or Path(tempfile.gettempdir()) / "fedappeal-benchmark-peers")
    python = folder / "bin" / "python"
    if not python.exists():
        uv = [str(Path(sys.executable).parent / "uv")]
        subprocess.run([*uv, "venv", "--quiet", "--python", sys.executable, str(folder)], check=True)
        needs = ["--quiet", "--python", str(python), "-r", str(HERE / "peers" / "requirements.txt")]
        subprocess.run([*uv, "pip", "install", *needs], check=True)
    return python


def busy(threads: int, spinning: bool, rounds: int) -> Figures:
    """Simulate beside a busy loop a core; ``spinning``: without what the command sets before it loads PyTorch."""
    from fedappeal.system.waiting_threads import sleep_while_waiting

    if not spinning:
        sleep_while_waiting()
    loop = [sys.executable, "-c", "import os\nparent = os.getppid()\nwhile os.getppid() == parent: pass"]
    loops = [subprocess.Popen(loop) for _ in range(os.cpu_count() or 1)]
    try:
        return ours({**_FMNIST, "evaluate-every": 1}, _OURS, rounds, threads)
    finally:
        for process in loops:
            process.kill()


def row(settings: Settings, arms: Iterable[str], rounds: int = 20, over: str = _OURS, by: str = "s") -> Row:
    """Return a row of these settings."""
    every = {
        "plain loop": partial(plain, settings),
        **{mode: partial(ours, settings, mode) for mode in ("sequential", "batched", "auto")},
        "floor": floor,
        **{name: partial(peer, name, settings) for name in PROGRAMS},
        "Flower": partial(flower, settings),
    }
    return Row({arm: every[arm] for arm in arms}, over, by, rounds)


_PUBLISHED = ("plain loop", "auto", *PROGRAMS)
_LOGISTIC = {"model": "logistic", "clients": 60, "clients-per-round": 0, "local-steps": 0, "local-epochs": 5}
_WORKERS = "simulate --task fmnist --strategy maxfl --clients 100 --clients-per-round 5 --requirement fixed"

ROWS = {
    "simulation/mlp": row(_FMNIST, (*_ALL, "floor")),
    "simulation/mlp-evaluated": row({**_FMNIST, "evaluate-every": 1}, _ALL),
    "simulation/logistic": row({**_FMNIST, **_LOGISTIC}, ("plain loop", "sequential", "batched", "Flower")),
    "simulation/cnn": row({**_FMNIST, "model": "cnn"}, _ALL),
    **{
        f"simulation/growth-{n}": row({**_FMNIST, "clients": n, "clients-per-round": 10, **more}, ("batched",))
        for n, more in ((100, {}), (1000, {}), (10_000, {"partition": "iid", "min-examples": 1}))
    },
    "evaluation": row({**_MAXFL, "evaluate-train": True}, ("plain loop", "batched"), 20, "plain loop", "CPU s"),
    "published/flute": row({**_OTHERS, **_FEW, "evaluate-every": 20}, _PUBLISHED, 100, "auto", "CPU s"),
    "published/pfl": row({**_OTHERS, **_MANY, "evaluate-every": 0}, _PUBLISHED, 5, "auto", "CPU s"),
    "busy": Row(
        {
            "one thread": partial(busy, 1, False),
            "default threads": partial(busy, 0, False),
            "default threads, spinning": partial(busy, 0, True),
        },
        "one thread",
        rounds=6,
        threads=0,
    ),
    "workers": Row(
        {
            "plain loop": partial(plain, {**_MAXFL, "evaluate-train": True}),
            "one process": partial(command, f"{_WORKERS} --mode layers"),
            "one worker": partial(command, f"{_WORKERS} --mode layers --workers 1"),
            "two workers": partial(command, f"{_WORKERS} --mode layers --workers 2"),
        },
        "plain loop",
        "s",
        rounds=30,
    ),
}
