"""Promise: what a server works out of a client's labels, under each switch of its owner, is in docs/attacks.json."""

from collections.abc import Callable
from pathlib import Path

import pytest

from fedappeal.protocol import keys
from fedappeal.settings.config import ConfigError, RunConfig
from tests.hostile.attacks.figures import NOISY, SILENT, check, labels_figure
from tests.hostile.attacks.labels import by_accuracy, by_bias_gradient, by_loss
from tests.hostile.attacks.victim import Found, Vector, Victim, write_images
from tests.node import metrics_of, run_config

MAXFL = run_config(model="logistic")
FEDAVG = run_config(model="mlp", strategy="fedavg")
TRAIN, TEST = keys.TRAIN_SPLIT, keys.TEST_SPLIT


@pytest.fixture
def images(tmp_path: Path) -> Path:
    return write_images(tmp_path)


Attack = Callable[[Victim], Found[Vector]]
ATTACKS: list[tuple[str, RunConfig, str, str, Attack]] = [
    ("accuracies of models that name one label", MAXFL, "--no-report-loss", TRAIN, lambda v: by_accuracy(v, TRAIN)),
    ("losses of models that are biases alone", MAXFL, "", TRAIN, lambda v: by_loss(v, TRAIN, at_once=4)),
    (
        "accuracies of models that name one label",
        MAXFL,
        "--no-report-loss --no-answer-train-split",
        TEST,
        lambda v: by_accuracy(v, TEST),
    ),
    ("the gradient of biases", FEDAVG, SILENT, TRAIN, by_bias_gradient),
    ("the gradient of biases", FEDAVG, f"{SILENT} {NOISY}", TRAIN, by_bias_gradient),
    ("the gradient of biases", FEDAVG, f"{SILENT} {NOISY}", TRAIN, lambda v: by_bias_gradient(v, answers=100)),
]


@pytest.mark.parametrize(
    ("name", "config", "options", "split", "attack"), ATTACKS, ids=[attack[0] for attack in ATTACKS]
)
def test_what_an_attack_finds_is_what_is_committed(
    name: str, config: RunConfig, options: str, split: str, attack: Attack, images: Path
) -> None:
    victim = Victim(config, images, options)
    found = attack(victim)
    check(name, options, found.models, labels_figure(found.value, victim.histogram(split), split))


def test_no_evaluation_tells_a_label_where_none_is_answered(images: Path) -> None:
    victim = Victim(MAXFL, images, "--no-answer-evaluate")
    assert set(victim.evaluate(victim.zero())) == {keys.NUM_EXAMPLES}
    with pytest.raises(ConfigError, match="answer-evaluate = False is not allowed in this run"):
        victim.evaluate(victim.zero(), TRAIN)


def test_an_evaluation_says_nothing_of_training_examples_where_that_is_switched_off(images: Path) -> None:
    victim = Victim(run_config(report_train_loss=True), images, "--no-answer-train-split")
    told = metrics_of(victim.node("evaluate"))
    assert not {keys.TRAIN_LOSS, keys.APPEALED_TRAIN} & set(told)
    assert told[keys.NUM_EXAMPLES] == len(victim.images(TEST))
    with pytest.raises(ConfigError, match="answer-train-split = False is not allowed in this run"):
        victim.evaluate(victim.node.initial, TRAIN)
