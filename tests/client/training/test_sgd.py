"""Minibatch SGD against the same steps by hand."""

import numpy as np
import pytest
import torch

from client.training.sgd import SGD
from fedappeal.core.registry import LOCAL_RULES
from fedappeal.settings.training import LocalTrainingSettings
from tests.client.training.descents import Quadratic, descended, half_square
from tests.problems import local_problem


def trained(batches: list[list[int]], **settings: float) -> float:
    given = {"learning-rate": 0.5, "batch-size": 2, "local-steps": len(batches), **settings}
    return descended(SGD(), 1.0, batches, LocalTrainingSettings.parse(given))


def test_minibatch_sgd_by_hand() -> None:
    # w = 1: gradient w - mean(y); batch (0, 1): 1 - 1 = 0; batch (1, 2): 1 - 3 = -2, w = 2; batch (0, 0): 2, w = 1
    assert trained([[0, 1]]) == pytest.approx(1.0)
    assert trained([[0, 1], [1, 2]]) == pytest.approx(2.0)
    assert trained([[0, 1], [1, 2], [0, 0]]) == pytest.approx(1.0)


def test_momentum_and_weight_decay_by_hand() -> None:
    # momentum 0.5: v1 = -2, w = 2; v2 = 0.5 * -2 + (2 - 3) = -2, w = 3
    assert trained([[1, 2], [1, 2]], momentum=0.5) == pytest.approx(3.0)
    # weight decay 0.2: g = -2 + 0.2 * 1 = -1.8, w = 1.9; g = -1.1 + 0.38, w = 2.26
    assert trained([[1, 2], [1, 2]], **{"weight-decay": 0.2}) == pytest.approx(2.26)


def test_no_steps_leave_the_model_alone() -> None:
    model = Quadratic(1.0)
    training = LocalTrainingSettings(learning_rate=0.1, batch_size=2)
    batches = np.empty((0, 2), dtype=np.int64)
    SGD().train(model, local_problem(half_square(), torch.zeros(3, 1), torch.zeros(3), batches, training))
    assert model.w.item() == 1.0


def test_rules_by_name() -> None:
    assert LOCAL_RULES.load("sgd") is SGD
    rules = {name: LOCAL_RULES.load(name) for name in LOCAL_RULES.built_in}
    assert [name for name, rule in rules.items() if rule.name != name] == []
    # By the papers: whose step is not SGD's, whose reply is not one model, whose reply is a gradient.
    assert {name for name, rule in rules.items() if not rule.knows_momentum} == {
        *("adamw", "scaffold", "maml", "moreau", "gradient", "weighted-gradient")
    }
    assert {name for name, rule in rules.items() if not rule.sends_model} == {
        *("scaffold", "gradient", "weighted-gradient")
    }
    assert {name for name, rule in rules.items() if rule.sends_update} == {"gradient", "weighted-gradient"}
