"""pfl-research and fluke: an environment of their own, the data they read, and their programs in ``peers/``."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
PEERS = {"pfl": "pfl_research.py", "fluke": "fluke_fl.py"}
MODELS = {"pixels:MnistPixels": "logistic", "pixels:CifarPixels": "cifar-pixels"}
"""The models that are a task's own, by the peers' names."""


def peer_python(folder: Path) -> Path:
    """Set up the peers' environment, once; return its Python."""
    python = folder / "bin" / "python"
    if not python.exists():
        uv = str(Path(sys.executable).parent / "uv")
        subprocess.run([uv, "venv", "--quiet", "--python", sys.executable, str(folder)], check=True)
        needs = ["-r", str(HERE / "peers" / "requirements.txt")]
        subprocess.run([uv, "pip", "install", "--quiet", "--python", str(python), *needs], check=True)
    return python


def write_data(config: Any, path: Path) -> None:
    """Write the data and the initial model of a run's settings for the peers."""
    import numpy as np

    from fedappeal.tasks import load_task

    task = load_task(config.task_settings())
    arrays: dict[str, Any] = {
        f"p{i}": p.detach().numpy() for i, p in enumerate(task.initial_model(config.seed).parameters())
    }
    for k in range(config.clients):
        data = task.load(k)
        arrays |= {f"x{k}": data.train.x.numpy(), f"y{k}": data.train.y.numpy()}
        arrays |= {f"tx{k}": data.test.x.numpy(), f"ty{k}": data.test.y.numpy()}
    np.savez(path, **arrays)


def peer(name: str, config: Any, python: Path, data: Path) -> dict[str, Any]:
    """Run one peer; its program prints what it measured."""
    options = {
        "model": MODELS.get(config.task) or ("mlp" if config.model == "auto" else config.model),
        "clients-per-round": config.clients_per_round or config.clients,
        "rounds": config.rounds,
        "local-steps": config.local_steps,
        "batch-size": config.batch_size,
        "learning-rate": config.learning_rate,
        "evaluate-every": config.evaluate_every,
        "seed": config.seed,
    }
    command = [str(python), str(HERE / "peers" / PEERS[name]), str(data)]
    done = subprocess.run(
        [*command, *(part for key, value in options.items() for part in (f"--{key}", str(value)))],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    if done.returncode:
        raise RuntimeError(f"{name} failed: {done.stderr[-2000:]}")
    found = json.loads(done.stdout.strip().splitlines()[-1])
    seconds, cpu = found["round_seconds"], found["cpu_seconds"]
    return {
        "seconds": seconds[1:-1],
        "cpu": cpu[1:-1],
        "startup": found["startup_seconds"],
        "accuracy": found["accuracy"],
    }
