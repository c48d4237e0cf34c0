"""Each task in a short simulated run, its clients side by side."""

from pathlib import Path
from typing import Any

import pytest
import torch

from fedappeal.record.reader import Record
from fedappeal.runs.plan import RunPlan
from fedappeal.settings.config import RunConfig
from fedappeal.simulation.engine import simulate
from fedappeal.simulation.options import Simulation
from fedappeal.tasks.datasets import cifar10, idx_images, sent140
from tests.tasks.small_data import (
    SmallCIFAR10,
    SmallEMNIST,
    write_cifar10,
    write_emnist,
    write_tweets,
    write_vectors,
)


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with small data sets for all tasks."""
    torch.set_num_threads(1)
    write_emnist(tmp_path)
    write_cifar10(tmp_path)
    write_tweets(tmp_path, {f"user{k}": 20 for k in range(6)})
    write_vectors(tmp_path)
    monkeypatch.setattr(idx_images, "EMNIST", SmallEMNIST)
    monkeypatch.setattr(cifar10, "CIFAR10", SmallCIFAR10)
    sent140._read.cache_clear()
    return tmp_path


@pytest.mark.parametrize("task", ["emnist", "cifar10", "sent140", "synth"])
def test_a_run_of_each_task(task: str, data: Path) -> None:
    settings: dict[str, Any] = {"task": task, "strategy": "fedavg", "participation": "always", "requirement": "fixed"}
    settings |= {"clients": 4, "unseen-clients": 2, "rounds": 6, "local-steps": 10, "min-examples": 2}
    if task in ("emnist", "cifar10"):
        settings["partition"] = "iid"
    config = RunConfig.parse(settings)
    run = RunPlan.of(config, data / "run").folder({})
    simulate(config, run, Simulation("batched", data_dir=str(data)))
    lines = Record(run.path).history
    assert [line["joined"] for line in lines] == [4] * 6
    assert all(line["evaluated"] == 6 for line in lines)
    # Random pixels cannot be learned for others, words and SYNTH's clients can.
    if task in ("sent140", "synth"):
        assert lines[-1]["loss"] < lines[0]["loss"]
