"""Losses measured with dropout on: both modes of the engine, and a second formula on the run's model."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from client.training.noise import Noise, seeded_noise
from fedappeal.record.reader import Record
from fedappeal.runs.plan import RunPlan
from fedappeal.settings.config import RunConfig
from fedappeal.simulation.engine import simulate
from fedappeal.simulation.options import Simulation
from fedappeal.tasks import load_task

SETTINGS: dict[str, Any] = {
    "task": "digits",
    "model": "mlp",
    "strategy": "maxfl",
    "clients": 8,
    "rounds": 3,
    "mandatory-rounds": 0,
    "on-empty-round": "keep",
    "requirement": "fixed",
    "fixed.loss": -1.0,
    "min-examples": 20,
    "report-train-loss": True,
}
"""A requirement that no loss meets: no client joins, and the model stays w_0; dropout in training plays no part."""


def run(folder: Path, mode: str, **settings: Any) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the history, without what depends on the clock, and the decisions."""
    config = RunConfig.parse_recorded(SETTINGS | {k.replace("_", "-"): v for k, v in settings.items()})
    made = RunPlan.of(config, folder).folder({})
    simulate(config, made, Simulation(mode, threads=1))
    lines = [{k: v for k, v in line.items() if k != "seconds"} for line in Record(folder).history]
    return lines, Record(folder).decisions


@pytest.mark.parametrize("mode", ["batched", "sequential"])
def test_each_rounds_training_loss_is_the_mean_over_the_clients_own_noise(mode: str, tmp_path: Path) -> None:
    lines, _ = run(tmp_path / "noisy", mode, loss_mode="training")
    usual, _ = run(tmp_path / "usual", mode)
    config = RunConfig.parse_recorded(SETTINGS)
    task = load_task(config.task_settings())
    model = task.initial_model(config.seed)
    for line in lines:
        losses = []
        for k in range(config.clients):
            data = task.load(k).train
            noise = Noise(0, f"client-{k:04d}/loss", line["round"])
            with torch.no_grad(), seeded_noise(noise, torch.device("cpu")):
                losses.append(float(functional.cross_entropy(model.train()(data.x), data.y)))
        assert line["train_loss"] == pytest.approx(np.mean(losses), rel=1e-5)
        assert line["joined"] == 0
    assert len({line["train_loss"] for line in [*lines, usual[0]]}) == 4, "new noise each round"
    for key in ("loss", "accuracy", "gm_appeal"):
        assert [line[key] for line in lines] == [line[key] for line in usual], "on test data"


def test_both_modes_of_the_engine_decide_alike(tmp_path: Path) -> None:
    task_loss = run(tmp_path / "probe", "sequential", loss_mode="training")[0][0]["train_loss"]
    settings = {"loss_mode": "training", "fixed.loss": task_loss, "rounds": 1}
    found = [run(tmp_path / mode, mode, **settings) for mode in ("batched", "sequential")]
    assert found[0][1] == found[1][1]
    assert 0 < found[0][0][0]["joined"] < 8, "some join, some do not"


def test_where_nothing_is_dropped_the_runs_are_the_same(tmp_path: Path) -> None:
    settings = {"model": "logistic", "requirement": "solo", "mandatory_rounds": 1, "solo.steps": 5, "rounds": 2}
    noisy, usual = (
        run(tmp_path / mode, "sequential", **settings, loss_mode=mode) for mode in ("training", "evaluation")
    )
    assert noisy == usual
    assert sum(line["joined"] for line in usual[0]) > 0


def test_a_run_with_noise_repeats_bit_for_bit(tmp_path: Path) -> None:
    settings = {"loss_mode": "training", "requirement": "solo", "mandatory_rounds": 2, "solo.steps": 20}
    first, again = (run(tmp_path / name, "auto", **settings) for name in ("first", "again"))
    assert first == again
