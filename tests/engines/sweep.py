"""Random runs, each in every engine: one by one, in threads, on workers, side by side in both forms, and deployed.

    python -m tests.engines.sweep --number 200 --seed 0 --deployed 20

One by one all engines give the same bits. In two threads a client that measures first is added later: models agree to
1e-6. Side by side the models after three rounds agree to 1e-5, and no client decides otherwise; where one does, its
line says how far the run's losses were from each other by then.
"""

import argparse
import random
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

import numpy as np
import torch

from fedappeal.record.lines import MODEL
from fedappeal.record.reader import Record
from fedappeal.runs.plan import RunPlan
from fedappeal.settings.config import ConfigError, RunConfig, Scalar
from fedappeal.simulation.engine import simulate
from fedappeal.simulation.options import LAYERS, SEQUENTIAL, VMAP, Simulation
from fedappeal.system.files import read_safetensors
from server.build import check_settings
from strategies import STRATEGIES
from tests.simulation.workers.local import Workers

CLOSE = 1e-5
"""Largest difference of two parameters after three rounds, beside the larger of 1 and the parameter."""

ROUNDING = 1e-6
"""As `CLOSE`, of models whose updates were added in another order."""


@dataclass(frozen=True)
class Engine:
    """A way to simulate a run.

    Attributes:
        how: the simulation.
        close: as in `differences`.
    """

    how: Simulation
    close: float


ENGINES = {
    "threads": Engine(Simulation(SEQUENTIAL, threads=2), ROUNDING),
    "workers": Engine(Simulation(SEQUENTIAL, threads=1, workers=3), 0.0),
    "workers in layers": Engine(Simulation(LAYERS, threads=1, workers=2), CLOSE),
    **{mode: Engine(Simulation(mode, threads=1), CLOSE) for mode in (LAYERS, VMAP)},
}
DEPLOYED = "deployed"
_MODELS = ("logistic", "mlp", "cnn", *(f"tests.engines.models:{name}" for name in ("Normed", "Skipping", "Jittered")))
_DRAWN: Mapping[str, tuple[Scalar, ...]] = {
    "model": _MODELS,
    "participation": ("appeal", "defect", "always", "bernoulli", "appeal=0.5,always=0.5"),
    "clients-per-round": (0, 0, 4),
    "unseen-clients": (0, 0, 1),
    "local-steps": (3, 5),
    "batch-size": (4, 16),
    "learning-rate": (0.05, 0.2),
    "momentum": (0.0, 0.0, 0.5),
    "weight-decay": (0.0, 0.0, 0.01),
    "lr-schedule": ("constant", "linear", "cosine"),
    "share": ("auto", "auto", "!*bias"),
    "judge-on": ("held-out", "cross-fitted", "train"),
    "use": ("adapted", "adapted", "best"),
    "adaptation-steps": (0, 5),
    "loss-mode": ("evaluation", "evaluation", "training"),
    "influence": ("off", "bounded"),
    "evaluate-every": (1, 2),
    "goodwill": (0, 1, 2),
    "requirement": ("solo", "fixed"),
}


def settings(draws: random.Random) -> dict[str, Scalar]:
    """Return the settings of a random run; they may be none that is allowed."""
    chosen = {name: draws.choice(values) for name, values in _DRAWN.items()}
    fixed = {"task": "digits", "clients": 6, "rounds": 3, "seed": draws.randrange(1000), "solo.steps": 8}
    return {"strategy": draws.choice(sorted(STRATEGIES.built_in)), **fixed, **chosen}


def allowed(number: int, seed: int) -> Iterator[RunConfig]:
    """Yield random runs that are allowed, ``number`` of them."""
    draws = random.Random(seed)
    while number:
        try:
            config = RunConfig.parse(settings(draws))
            check_settings(config)
        except ConfigError:
            continue
        number -= 1
        yield config


def outcome(config: RunConfig, engine: Engine, folder: Path) -> Path:
    """Run it once; return its folder."""
    with patch("fedappeal.simulation.workers.workers_grid.processes", Workers().processes):  # quicker than processes
        simulate(config, RunPlan.of(config, folder).folder({}), engine.how)
    return folder


def unusual(config: RunConfig) -> dict[str, Scalar]:
    """Return the settings that are not the default."""
    usual = RunConfig.parse({}).as_config()
    return {name: value for name, value in config.as_config().items() if usual.get(name) != value}


def deployed(config: RunConfig, folder: Path) -> Path:
    """Run it once with client processes on this machine; return its folder."""
    values = {**unusual(config), "influence": config.influence, "out": str(folder)}  # bounded where nothing is said
    plugins = [f"{name}={value}" for name, value in values.items() if "." in name]
    options = [f"--{name}={value}" for name, value in values.items() if "." not in name]
    command = [sys.executable, "-m", "fedappeal.cli.main", "local", *options, "--no-report"]
    done = subprocess.run(
        [*command, *(word for plugin in plugins for word in ("--set", plugin))], capture_output=True, text=True
    )
    if done.returncode:
        refused = done.returncode == 2 and "is not allowed" in done.stderr
        raise (ConfigError if refused else RuntimeError)(done.stderr[-500:])
    return folder


def differences(expected: Path, found: Path, close: float) -> Iterator[str]:
    """Yield in what two runs differ: in decisions, or in the model by more than ``close``; 0: by a bit."""
    one, other = Record(expected), Record(found)
    for before, after in zip(one.decisions, other.decisions, strict=True):
        if before != after:
            losses = [[line.get("loss") for line in record.history] for record in (one, other)]
            yield f"decisions {before} and {after}, with losses {losses}"
            return
    models = [read_safetensors(folder / MODEL)[0] for folder in (expected, found)]
    most = 0.0
    for name, values in models[0].items():
        gap = np.abs(models[1][name] - values) / np.maximum(1.0, np.abs(values))
        most = max(most, float(np.nan_to_num(gap, nan=np.inf).max(initial=0.0)))
    if most > close:
        yield f"the models by {most:.1e}"


def compare(config: RunConfig, counted: Counter[str], too_deployed: bool = False) -> Iterator[str]:
    """Yield a line for each engine in which a run is another one.

    Args:
        config: the run.
        counted: counts the engines in which it ran.
        too_deployed: whether it runs with client processes, too.
    """
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        try:
            one = outcome(config, Engine(Simulation(SEQUENTIAL, threads=1), 0.0), Path(scratch, "one"))
        except ConfigError:  # a strategy that does not go with this model says so once that is built
            counted["refused"] += 1
            return
        for name, engine in ENGINES.items():
            try:
                other = outcome(config, engine, Path(scratch, name))
            except ConfigError as error:
                if engine.how.mode == SEQUENTIAL or "is not allowed" not in str(error):
                    yield f"{name}: {error}"
                continue
            counted[name] += 1
            # PyTorch's two threads train a model with draws of its own, and add in another order than one.
            close = CLOSE if name == "threads" and "Jittered" in config.model else engine.close
            yield from (f"{name}: {line}" for line in differences(one, other, close))
        if too_deployed:
            try:
                other = deployed(config, Path(scratch, DEPLOYED))
            except ConfigError:  # of real clients none has priority because it says so
                counted[f"{DEPLOYED}: refused"] += 1
                return
            counted[DEPLOYED] += 1
            yield from (f"{DEPLOYED}: {line}" for line in differences(one, other, CLOSE))


def main() -> int:
    """Compare random runs; print those that differ, and how many ran in which engine."""
    parser = argparse.ArgumentParser(description="random runs, each in every engine")
    parser.add_argument("--number", type=int, default=200, help="random runs")
    parser.add_argument("--seed", type=int, default=0, help="from which they are drawn")
    parser.add_argument("--deployed", type=int, default=20, help="of them with client processes, too")
    options = parser.parse_args()
    counted: Counter[str] = Counter()
    wrong = 0
    for k, config in enumerate(allowed(options.number, options.seed)):
        for line in compare(config, counted, k < options.deployed):
            wrong += 1
            print(f"run {k}: {line}\n  {unusual(config)}", flush=True)
    print(f"{options.number} runs, {wrong} differences; ran in {dict(counted)}")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
