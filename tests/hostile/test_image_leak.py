"""Promise: which of a client's images a server reads off its updates, under each switch, is in docs/attacks.json."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fedappeal.protocol import keys
from fedappeal.settings.config import ConfigError, RunConfig
from tests.hostile.attacks.figures import CLIPPED, NOISY, SILENT, check, images_figure
from tests.hostile.attacks.images import by_differences, by_initial_model, by_rare_units, by_single_batches
from tests.hostile.attacks.victim import Found, Vector, Victim, write_images
from tests.node import changed, run_config

LOGISTIC = run_config(model="logistic", strategy="fedavg")
MLP = run_config(model="mlp", strategy="fedavg")


@pytest.fixture
def images(tmp_path: Path) -> Path:
    return write_images(tmp_path)


Attack = Callable[[Victim], Found[Vector]]
ATTACKS: list[tuple[str, RunConfig, str, Attack]] = [
    ("batches of one", LOGISTIC, SILENT, lambda v: by_single_batches(v, models=36)),
    ("batches of one", LOGISTIC, f"{SILENT} {CLIPPED}", lambda v: by_single_batches(v, models=36)),
    ("batches of one", LOGISTIC, f"{SILENT} {NOISY}", lambda v: by_single_batches(v, models=36)),
    (
        "batches of 8, of a run with max-train-examples = 1",
        changed(LOGISTIC, max_train_examples=1),
        SILENT,
        lambda v: by_single_batches(v, models=1, batch_size=8),
    ),
    ("batches of all, and of all but one", LOGISTIC, SILENT, lambda v: by_differences(v, models=36)),
    ("batches of all, and of all but one", LOGISTIC, f"{SILENT} {NOISY}", lambda v: by_differences(v, models=36)),
    ("rarely active units, batches of 8", MLP, SILENT, lambda v: by_rare_units(v, models=1, batch_size=8)),
    ("rarely active units, batches of all", MLP, SILENT, lambda v: by_rare_units(v, models=1)),
    ("rarely active units, batches of all", MLP, SILENT, lambda v: by_rare_units(v, models=4)),
    ("rarely active units, batches of all", MLP, f"{SILENT} {NOISY}", lambda v: by_rare_units(v, models=4)),
    *(
        (f"w_0 as it is, batches of {size}", MLP, options, lambda v, m=models, b=size: by_initial_model(v, m, b))
        for size, options, models in (
            (8, SILENT, 1),
            (8, SILENT, 5),
            (8, SILENT, 30),
            (8, f"{SILENT} {CLIPPED}", 30),
            (8, f"{SILENT} {NOISY}", 30),
            (32, SILENT, 30),
            (32, f"{SILENT} {NOISY}", 30),
        )
    ),
    (
        "w_0 as it is, 30 local steps of 32, the defaults of a run",
        MLP,
        SILENT,
        lambda v: by_initial_model(v, models=30, batch_size=32, local_steps=30),
    ),
]


@pytest.mark.parametrize(("name", "config", "options", "attack"), ATTACKS, ids=[attack[0] for attack in ATTACKS])
def test_what_an_attack_finds_is_what_is_committed(
    name: str, config: RunConfig, options: str, attack: Attack, images: Path
) -> None:
    victim = Victim(config, images, options)
    found = attack(victim)
    check(name, options, found.models, images_figure(found, victim))


LIMITS = "--limits min-batch=8"
"""The default of `fedappeal client`."""


def test_a_smallest_batch_counts_the_examples_that_a_run_leaves_to_train_on(images: Path) -> None:
    line = "a batch of 1 is not allowed: this client's min-batch = 8"
    with pytest.raises(ConfigError, match=line):
        by_single_batches(Victim(LOGISTIC, images, LIMITS), models=1)
    for settings in ({"max_train_examples": 1}, {"train_share": 0.01}, {"batch_size": 1}):
        with pytest.raises(ConfigError, match=line):  # in the roll call
            Victim(changed(LOGISTIC, **settings), images, LIMITS)
    with pytest.raises(ConfigError, match=line):
        Victim(run_config(model="logistic", strategy="adagd", adagd__gradient_batch=1), images, LIMITS)


def test_it_stops_no_attack_but_that_one(images: Path) -> None:
    victim = Victim(MLP, images, f"{SILENT} {LIMITS}")
    assert images_figure(by_rare_units(victim, models=1), victim) == "17 of 36 images"
    victim = Victim(MLP, images, f"{SILENT} {LIMITS}")
    assert images_figure(by_initial_model(victim, models=1, batch_size=8), victim) == "6 of 36 images"
    victim = Victim(LOGISTIC, images, f"{SILENT} {LIMITS}")
    assert len(by_differences(victim, models=2).value) == 2


@pytest.mark.parametrize("options", [CLIPPED, NOISY])
def test_an_infinite_bias_undoes_neither_clipping_nor_noise(options: str, images: Path) -> None:
    """A unit that is never active may have any bias; the update's norm is then no number."""
    victim = Victim(MLP, images, options)
    sent = {name: array.copy() for name, array in victim.node.initial.items()}
    sent["hidden2.bias"][0] = -np.inf
    told = {"batch-size": 8, "local-steps": 1, "learning-rate": 1e6}
    reply = victim.train(sent, **told)
    back = victim.node.layout.unpack(reply.array_records[keys.ARRAYS])
    assert all(np.isnan(array).all() for array in back.values()), "the reply says that much, and no value"
    honest = victim.update(victim.node.initial, victim.train(victim.node.initial, **told))
    assert all(np.isfinite(array).all() for array in honest.values())
