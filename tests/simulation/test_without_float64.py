"""Devices without float64, such as Apple's GPUs: what clients calculate there, and what they measure, needs none."""

from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import fedappeal
from client.training.sgd import SGD, AdamW
from fedappeal.core.local_rule import LocalRule
from fedappeal.simulation.forms import dry_run
from fedappeal.trained.model import _labels
from strategies.perfedavg import PerFedAvg
from strategies.pfedme import PFedMe
from tests.simulation.test_synchronising import Several, elsewhere
from tests.without_float64 import WithoutFloat64

__all__ = ["elsewhere"]


def test_float64_is_refused_on_the_device_alone() -> None:
    values = torch.ones(3)
    with WithoutFloat64():
        with pytest.raises(TypeError, match="float64"):
            values.double()
        assert values.cpu().double().mean().item() == 1.0


@pytest.mark.parametrize("mode", ["sequential", "layers", "vmap"])
@pytest.mark.parametrize(
    "rule", [SGD(), AdamW(AdamW.Settings()), *(k.LocalRule(k.Settings()) for k in (PFedMe, PerFedAvg))]
)
def test_clients_train_measure_and_differentiate(rule: LocalRule, mode: str) -> None:
    several = Several(mode)
    with WithoutFloat64():
        several.waits(partial(several.train, rule))
        several.waits(several.evaluate)
        if mode != "vmap":  # it takes equally many examples at once, and these clients have others
            several.waits(several.gradient)


@pytest.mark.parametrize("mode", ["batched", "sequential"])
def test_a_run_of_clients_that_decide(mode: str, tmp_path: Path) -> None:
    with WithoutFloat64():
        run = fedappeal.simulate(
            **{"task": "digits", "model": "mlp", "clients": 3, "rounds": 1, "local_steps": 2},
            mode=mode, threads=1, quiet=True, out=str(tmp_path / "run"),
        )  # fmt: skip
    assert run.history["failed"].tolist() == [0]
    assert run.history["evaluated"].tolist() == [3]


def test_forms_are_compared() -> None:
    gradients = [[torch.ones(3), torch.zeros(2)]]
    with WithoutFloat64():
        assert dry_run._equal(gradients, {"a": torch.ones(1, 3), "b": torch.zeros(1, 2)})
        assert not dry_run._equal(gradients, {"a": torch.ones(1, 3), "b": torch.ones(1, 2)})


def test_predictions_have_probabilities() -> None:
    card: Any = SimpleNamespace(num_classes=2, label=str)
    with WithoutFloat64():
        assert _labels(torch.tensor([[0.0, 9.0]]).add(0.0), 1, card) == [("1", pytest.approx(0.99988, abs=1e-5))]
