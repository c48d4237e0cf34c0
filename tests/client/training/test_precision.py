"""Forward passes in bfloat16: float32's results within its eight bits, whatever form the outputs have."""

from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from client.training.models import BFLOAT16, FLOAT32, evaluate, forward
from client.training.requests import TrainingProblem
from fedappeal.core.registry import LOCAL_RULES
from fedappeal.settings.config import RunConfig
from fedappeal.settings.training import LocalTrainingSettings
from fedappeal.tasks import load_task

TASK = load_task(RunConfig(clients=2, model="mlp").task_settings())


def test_a_product_is_that_of_rounded_factors() -> None:
    model = nn.Linear(1, 1, bias=False)
    nn.init.constant_(model.weight, 3.0)
    x = torch.tensor([[1 + 2**-9], [1 + 2**-7]])  # bfloat16 has no number between 1 and 1 + 2^-7
    assert forward(TASK, model, x, FLOAT32).flatten().tolist() == [3 + 3 * 2**-9, 3 + 3 * 2**-7]
    found = forward(TASK, model, x, BFLOAT16)
    assert found.dtype == torch.float32
    assert found.flatten().tolist() == [3.0, 3 + 2 * 2**-6]  # the nearest to 3 + 1.5 / 64 with an even last bit


def test_a_model_is_measured_as_in_float32_within_bfloat16s_bits() -> None:
    model, data = TASK.initial_model(3), TASK.load(0).train
    exact, found = (evaluate(TASK, model, data, precision=each) for each in (FLOAT32, BFLOAT16))
    assert found.loss == pytest.approx(exact.loss, rel=2**-7)
    assert found.score == pytest.approx(exact.score, abs=0.05)
    assert found.loss != exact.loss, "measured in float32"


class _Outputs(nn.Module):
    def __init__(self, form: Any) -> None:
        super().__init__()
        self.layer, self.form = nn.Linear(2, 2), form

    def forward(self, x: Tensor) -> Any:
        return self.form(self.layer(x))


class Pair(NamedTuple):
    first: Any
    last: Any


class Own:
    """A form of outputs that only a task of its own knows."""

    def __init__(self, logits: Tensor) -> None:
        self.logits = logits


@pytest.mark.parametrize(
    ("form", "read"),
    [
        (lambda y: (y, {"argmax": y.argmax(1)}), lambda found: found[0]),
        (lambda y: {"y": y}, lambda found: found["y"]),
        (lambda y: (y, None, "text"), lambda found: found[0]),
        (lambda y: Pair(1, [y]), lambda found: found.last[0]),
    ],
)
def test_each_tensor_of_a_models_outputs_is_float32_again(form: Any, read: Any) -> None:
    assert read(forward(TASK, _Outputs(form), torch.ones(3, 2), BFLOAT16)).dtype == torch.float32


def test_outputs_of_another_form_are_left_alone() -> None:
    found = forward(TASK, _Outputs(Own), torch.ones(3, 2), BFLOAT16)
    assert isinstance(found, Own)
    assert found.logits.dtype == torch.bfloat16


@pytest.mark.parametrize("rule", ["sgd", "prox", "adamw", "maml", "moreau"])
def test_training_in_bfloat16_is_that_in_float32_within_its_bits_and_its_weights_are_float32(rule: str) -> None:
    """After five steps of a CNN the two updates point the same way, and differ by some per cent of their length."""
    task = load_task(RunConfig(clients=2, model="cnn").task_settings())
    start, data = task.initial_model(3), task.load(0).train
    batches = np.random.default_rng(0).integers(len(data), size=(15, 16))
    updates = []
    for precision in (FLOAT32, BFLOAT16):
        model = task.initial_model(3)
        given = {"learning-rate": 0.05, "batch-size": 16, "local-steps": 5, "training-precision": precision}
        problem = TrainingProblem(task, data, batches, LocalTrainingSettings.parse(given))
        LOCAL_RULES.load(rule)().train(model, problem)
        assert {p.dtype for p in model.parameters()} == {torch.float32}
        pairs = zip(model.parameters(), start.parameters(), strict=True)
        updates.append(torch.cat([(after - before).flatten() for after, before in pairs]).detach())
    exact, found = updates
    apart = (found - exact).norm() / exact.norm()
    assert 0 < apart < 0.25
    assert torch.cosine_similarity(exact, found, dim=0) > 0.97
