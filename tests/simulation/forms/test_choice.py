"""How a run's clients train: what `auto` takes, and what a mode that is not possible says."""

from typing import Any

import pytest
import torch
from torch import nn

from client.training.sgd import SGD
from fedappeal.core.local_rule import LocalRule
from fedappeal.settings.config import ConfigError, RunConfig
from fedappeal.simulation.forms import choice
from fedappeal.simulation.forms.choice import Problem, TooSlow, choose
from fedappeal.simulation.pool import Pool
from tests.simulation.structures import EXAMPLES, Classes, Images

CLIENTS = len(EXAMPLES)


class Listed(Classes):
    """A model of listed layers."""

    input_shape, num_classes = (6,), 3

    def build(self) -> nn.Module:
        return nn.Sequential(nn.Linear(6, 3))


class Normed(Images):
    """Batch normalisation."""

    def build(self) -> nn.Module:
        return nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.AdaptiveAvgPool2d(1), nn.Flatten())


class Own(SGD):
    """Trains in a way of its own."""

    name = "own"

    def train(self, *_: Any) -> None:
        """Leave the model as it is."""


def problem(kind: type[Classes] | type[Images], rule: type[LocalRule] = SGD, **settings: Any) -> Problem:
    given = {"clients": CLIENTS, "batch-size": 4, "local-steps": 2} | {
        k.replace("_", "-"): v for k, v in settings.items()
    }
    config = RunConfig.parse(given)
    task = kind(config.task_settings())
    pool = Pool(task, range(CLIENTS), torch.device("cpu"))
    return Problem(config, task, task.initial_model(0), rule, lambda: pool)


@pytest.fixture
def gain(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """What a measurement finds, in place of one."""
    found = {"gain": 1.7, "clients": 0}

    def measured(form: Any, problem: Problem, clients: int, clock: Any) -> float:
        found["clients"] = clients
        if not found["gain"]:
            raise TooSlow("a step takes 0.30 s")
        return found["gain"]

    monkeypatch.setattr(choice, "measured_gain", measured)
    return found


@pytest.mark.parametrize(
    ("measured", "mode", "line"),
    [
        (1.74, "vmap", "side by side by vmap (1.7 times as fast as one after another)"),
        (1.05, "vmap", "side by side by vmap (1.1 times as fast as one after another)"),
        (1.04, "sequential", "one after another (vmap is only 1.04 times as fast)"),
        (0.70, "sequential", "one after another (vmap takes 1.4 times as long)"),
        (0.0, "sequential", "one after another (a step takes 0.30 s: no gain by vmap is to be had)"),
    ],
)
def test_auto_takes_the_faster_and_says_by_how_much(
    gain: dict[str, float], measured: float, mode: str, line: str
) -> None:
    gain["gain"] = measured
    found = choose("auto", problem(Classes, clients_per_round=5))
    assert (found.mode, str(found)) == (mode, line)
    assert gain["clients"] == 5


def test_too_few_clients_a_round_are_not_measured(gain: dict[str, float]) -> None:
    found = choose("auto", problem(Classes, clients_per_round=3))
    assert str(found) == "one after another (3 clients a round gain nothing by vmap)"
    assert gain["clients"] == 0


def test_batched_layers_are_taken_without_a_measurement(gain: dict[str, float]) -> None:
    assert choose("auto", problem(Listed)) == ("layers", "")
    assert choose("batched", problem(Listed)) == ("layers", "")
    assert gain["clients"] == 0


def test_a_mode_can_be_asked_for(gain: dict[str, float]) -> None:
    assert choose("vmap", problem(Listed)) == ("vmap", "")
    assert choose("batched", problem(Classes)) == ("vmap", "")
    assert choose("sequential", problem(Listed)) == ("sequential", "")
    assert gain["clients"] == 0


@pytest.mark.parametrize(
    ("mode", "kind", "rule", "reason"),
    [
        ("layers", Classes, SGD, "the forward pass of Skipping is no chain of layers"),
        ("layers", Normed, SGD, r"layer '1' \(BatchNorm2d\) has no batched form"),
        ("vmap", Normed, SGD, r"layer '1' \(BatchNorm2d\) changes its 'running_mean' in training"),
        ("batched", Normed, SGD, r"layer '1' \(BatchNorm2d\) changes its 'running_mean' in training"),
        ("vmap", Classes, Own, "local rule 'own' has no batched form"),
    ],
)
def test_a_form_that_is_not_possible_is_one_line(mode: str, kind: Any, rule: Any, reason: str) -> None:
    with pytest.raises(ConfigError, match=rf"mode = '{mode}' is not allowed: {reason} \(auto, sequential\)"):
        choose(mode, problem(kind, rule))


def test_auto_says_what_cannot_be_trained_side_by_side() -> None:
    found = choose("auto", problem(Normed))
    assert str(found) == "one after another (layer '1' (BatchNorm2d) changes its 'running_mean' in training)"


def test_training_in_bfloat16_is_one_by_one() -> None:
    half = problem(Listed, training_precision="bfloat16")
    assert choose("auto", half) == (choice.SEQUENTIAL, "training-precision = bfloat16 has no batched form")
    with pytest.raises(ConfigError, match="mode = 'layers' is not allowed: training-precision = bfloat16 has no"):
        choose("layers", half)
