"""A simulated run that was stopped, killed or has finished continues as if nothing had happened, to the bit."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from fedappeal.files import read_safetensors
from fedappeal.protocol.config import ConfigError, RunConfig
from fedappeal.simulation.engine import Simulation, simulate
from fedappeal.simulation.memory import REQUIREMENTS, SavedMemory
from server.checkpoint import Checkpoint
from server.resumption import settings_to_resume
from server.run_folder import (
    CHECKPOINT,
    EVENTS,
    HISTORY,
    MEASUREMENTS,
    MODEL,
    PARTICIPATION,
    RunFolder,
    read_config,
    read_lines,
)

SETTINGS: dict[str, Any] = {
    **{"task": "digits", "model": "logistic", "clients": 6, "unseen-clients": 1, "clients-per-round": 3, "rounds": 6},
    **{"mandatory-rounds": 2, "local-steps": 4, "batch-size": 16, "solo.steps": 8, "learning-rate": 0.3},
}
STRATEGIES: dict[str, dict[str, Any]] = {
    "fedavg": {"participation": "appeal=0.4,defect=0.6", "defect.leave-below": 1.2},
    "fedprox": {},
    "scaffold": {},
    "qfedavg": {},
    "mwfed": {},
    "perfedavg": {"rounds": 4},
    "pfedme": {"rounds": 4},
    "maxfl": {"tuning-steps": 2, "evaluate-every": 2},
    "fedalign": {"fedalign.epsilon-schedule": "linear", "fedalign.global-loss": "stale", "loss-mode": "training"},
    "adagd": {"clients-per-round": 0, "adagd.precision": 0.05, "adagd.step-size": 0.5},
    "maxfl-adagd": {"clients-per-round": 0, "maxfl-adagd.precision": 0.05, "maxfl-adagd.step-size": 0.5},
}


@pytest.fixture(autouse=True)
def _one_thread_and_every_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(1)
    monkeypatch.setattr("server.recorder.SECONDS_APART", 0.0)
    monkeypatch.setattr("server.recorder.LARGEST_SHARE", 0)


def settings(**changed: Any) -> RunConfig:
    return RunConfig.parse(SETTINGS | {key.replace("_", "-"): value for key, value in changed.items()})


def run(path: Path, config: RunConfig, mode: str = "auto", **how: Any) -> Path:
    simulate(config, RunFolder.create(path, config), Simulation(mode, threads=1), **how)
    return path


def resume(path: Path, rounds: int | None = None, **how: Any) -> None:
    config = settings_to_resume(path, rounds)
    simulate(config, RunFolder.open(path), Simulation.of_runtime(read_config(path)["runtime"]), **how)


def left_by(path: Path) -> dict[str, Any]:
    """All that a run leaves, but for dates, seconds and the run's key."""
    checkpoint = Checkpoint.read(path / CHECKPOINT)
    state = {name: dict(record) for name, record in checkpoint.state.config_records.items()}
    arrays = {
        f"{name}/{key}": array.numpy().tobytes()
        for name, record in {"model": checkpoint.arrays, **checkpoint.state.array_records}.items()
        for key, array in record.items()
    }
    return {
        "history": [{k: v for k, v in line.items() if k != "seconds"} for line in read_lines(path / HISTORY)],
        **{name: read_lines(path / name) for name in (PARTICIPATION, MEASUREMENTS, REQUIREMENTS)},
        "rounds": [e["round"] for e in read_lines(path / EVENTS) if e["event"] == "round"],
        "model": {name: array.tobytes() for name, array in read_safetensors(path / MODEL)[0].items()},
        "state": (state, arrays, checkpoint.server_round),
        "memory": memory(path),
    }


def memory(path: Path) -> dict[str, Any]:
    """What the clients remember at the end, without the run's key."""
    key, found = RunFolder.open(path).run_key, {}
    for file in path.glob("memory-*.safetensors"):
        arrays, _ = read_safetensors(file)
        text = json.loads(arrays.pop("text").tobytes().decode().replace(key, "KEY"))
        found[file.name] = {name.replace(key, "KEY"): array.tobytes() for name, array in arrays.items()}, text
    return found


def killed_after(monkeypatch: pytest.MonkeyPatch, server_round: int) -> None:
    """Let runs end after the lines of the next round, before its memory and its checkpoint are written."""
    save = SavedMemory.save

    def killed(self: SavedMemory, number: int) -> None:
        if number == server_round + 1:
            raise RuntimeError("killed")
        save(self, number)

    monkeypatch.setattr(SavedMemory, "save", killed)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_run_that_was_killed_continues_to_the_bit(
    strategy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = settings(strategy=strategy, **STRATEGIES[strategy])
    whole = run(tmp_path / "whole", config)
    with monkeypatch.context() as patch:
        killed_after(patch, 3)
        with pytest.raises(RuntimeError, match="killed"):
            run(tmp_path / "halved", config)
    halved = tmp_path / "halved"
    assert Checkpoint.read(halved / CHECKPOINT).server_round == 3
    assert len(read_lines(halved / HISTORY)) == 4
    resume(halved)
    assert left_by(halved) == left_by(whole)
    assert len(read_lines(whole / HISTORY)) == config.rounds
    assert sum(line["joined"] for line in read_lines(whole / HISTORY)[3:]) > 0
