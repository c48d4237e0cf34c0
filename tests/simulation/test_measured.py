"""What a run measures for experiments: both losses, the worst decile, and models tuned before they are judged."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch.nn import functional

from fedappeal.record.lines import MODEL
from fedappeal.record.reader import Record
from fedappeal.runs.plan import RunPlan
from fedappeal.settings.config import RunConfig
from fedappeal.simulation.engine import simulate
from fedappeal.simulation.options import Simulation
from fedappeal.tasks import load_task

SETTINGS: dict[str, Any] = {
    "task": "digits",
    "model": "logistic",
    "strategy": "fedavg",
    "participation": "always",
    "clients": 12,
    "rounds": 2,
    "local-steps": 3,
    "solo.steps": 3,
    "min-examples": 20,
    "evaluate-train": False,
}


def last_line(folder: Path, **settings: Any) -> tuple[dict[str, Any], RunConfig]:
    config = RunConfig.parse_recorded({**SETTINGS, **{k.replace("_", "-"): v for k, v in settings.items()}})
    simulate(config, RunPlan.of(config, folder).folder({}), Simulation(threads=1))
    return Record(folder).history[-1], config


def by_hand(folder: Path, config: RunConfig) -> tuple[float, float, list[float]]:
    """Return the clients' mean test loss and mean training loss of the run's model, and their accuracies."""
    task = load_task(config.task_settings())
    model = task.initial_model(0)
    model.load_state_dict(load_file(folder / MODEL))
    model.eval()
    losses, accuracies = [], []
    with torch.no_grad():
        for client in range(config.clients):
            data = task.load(client)
            losses.append([float(functional.cross_entropy(model(s.x), s.y)) for s in (data.test, data.train)])
            accuracies.append(float((model(data.test.x).argmax(1) == data.test.y).double().mean()))
    test, train = np.mean(losses, axis=0)
    return float(test), float(train), accuracies


def test_both_losses_and_the_worst_decile(tmp_path: Path) -> None:
    line, config = last_line(tmp_path / "run", report_train_loss=True)
    test, train, accuracies = by_hand(tmp_path / "run", config)
    assert line["loss"] == pytest.approx(test, rel=1e-5)
    assert line["train_loss"] == pytest.approx(train, rel=1e-5)
    assert abs(test - train) > 1e-3
    assert line["worst_decile_accuracy"] == pytest.approx(np.mean(sorted(accuracies)[:2]))  # 12 / 10, rounded up
    assert (line["lowest_accuracy"], line["highest_accuracy"]) == (min(accuracies), max(accuracies))


def test_the_training_loss_stays_with_the_client_unless_asked_for(tmp_path: Path) -> None:
    for n, settings in enumerate(({}, {"evaluate_train": True}, {"report_train_loss": True, "report_loss": False})):
        line, _ = last_line(tmp_path / str(n), **settings)
        assert "train_loss" not in line
        assert ("gm_appeal_train" in line) == (n == 1)


@pytest.mark.parametrize("strategy", ["fedavg", "maxfl", "perfedavg"])
def test_every_strategys_model_is_judged_after_tuning(strategy: str, tmp_path: Path) -> None:
    plain, _ = last_line(tmp_path / "plain", strategy=strategy, learning_rate=0.02)
    tuned, config = last_line(tmp_path / "tuned", strategy=strategy, learning_rate=0.02, tuning_steps=20)
    untuned, _, _ = by_hand(tmp_path / "tuned", config)
    assert plain["loss"] == pytest.approx(by_hand(tmp_path / "plain", config)[0], rel=1e-5)
    assert tuned["loss"] < untuned - 0.05, "tuning on a client's own data lowers its test loss here"
