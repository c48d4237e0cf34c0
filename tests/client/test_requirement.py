"""The requirement rho_k: by an independent loop, computed once, and stored under all it depends on."""

import hashlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from client.arithmetic import Arithmetic
from client.models import arrays_of
from client.participant import Participant
from client.requirement import Requirement, read_requirement, requirement_key, stored_requirement
from client.settings import NodeSettings
from client.state import DiskStore
from fedappeal.protocol.config import RunConfig
from fedappeal.protocol.draws import batch_indices

CONFIG = RunConfig(clients=4, model="logistic", warmup_steps=20, warmup_learning_rate=0.2, batch_size=16)
NODE = NodeSettings(partition_id=2, device="cpu")


def test_the_solo_warm_up_is_plain_sgd_from_the_initial_model(tmp_path: Path) -> None:
    volunteer = Participant(CONFIG, NODE, DiskStore(tmp_path))
    initial = arrays_of(volunteer.task.initial_model(9))  # not the run's own: w_0 is what the roll call brought
    requirement = volunteer.begin_run("key", initial)

    data = volunteer.data
    layer = nn.Linear(64, 10)
    with torch.no_grad():
        layer.weight.copy_(torch.from_numpy(initial["output.weight"]))
        layer.bias.copy_(torch.from_numpy(initial["output.bias"]))
    x = data.train.x.reshape(len(data.train), -1)
    for batch in batch_indices(0, "client-0002", 0, len(data.train), 20, 16, "warm-up"):
        loss = functional.cross_entropy(layer(x[batch]), data.train.y[batch])
        gradients = torch.autograd.grad(loss, [layer.weight, layer.bias])
        with torch.no_grad():
            for parameter, gradient in zip((layer.weight, layer.bias), gradients, strict=True):
                parameter -= 0.2 * gradient
    np.testing.assert_allclose(requirement.solo["output.weight"], layer.weight.detach().numpy(), atol=1e-6)
    np.testing.assert_allclose(requirement.solo["output.bias"], layer.bias.detach().numpy(), atol=1e-6)
    assert requirement.rho == pytest.approx(functional.cross_entropy(layer(x), data.train.y).item(), abs=1e-6)
    predicted = layer(data.test.x.reshape(len(data.test), -1)).argmax(dim=1)
    assert requirement.solo_accuracy == pytest.approx((predicted == data.test.y).float().mean().item())


def test_a_requirement_is_computed_once_and_kept_by_a_new_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Participant(CONFIG, NODE, DiskStore(tmp_path))
    initial = arrays_of(first.task.initial_model(0))
    requirement = first.begin_run("key", initial)

    def fail(*args: object) -> None:
        raise AssertionError("computed twice")

    monkeypatch.setattr(Participant, "_warm_up", fail)
    again = Participant(CONFIG, NODE, DiskStore(tmp_path))
    for found in (first.requirement("key"), again.requirement("key"), again.begin_run("another-run", initial)):
        assert found.rho == requirement.rho
        assert found.solo_accuracy == requirement.solo_accuracy
        np.testing.assert_array_equal(found.solo["output.weight"], requirement.solo["output.weight"])


def test_without_a_roll_call_the_requirement_starts_from_the_tasks_model(tmp_path: Path) -> None:
    one = Participant(CONFIG, NODE, DiskStore(tmp_path / "a"))
    other = Participant(CONFIG, NODE, DiskStore(tmp_path / "b"))
    assert one.requirement("").rho == other.begin_run("k", arrays_of(other.task.initial_model(CONFIG.seed))).rho


def test_a_fixed_requirement_trains_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Arithmetic, "evaluate", None)
    monkeypatch.setattr(Arithmetic, "train", None)
    config = CONFIG.model_copy(update={"requirement": "fixed", "fixed_requirement": 0.75})
    volunteer = Participant(config, NODE, DiskStore(tmp_path))
    requirement = volunteer.begin_run("k", arrays_of(volunteer.task.initial_model(0)))
    assert requirement.rho == 0.75
    assert requirement.solo == {}


BASE = (CONFIG, "task", "data", "layout", "initial", "client")


@pytest.mark.parametrize(
    ("changed", "other"),
    [
        ({"warmup_steps": 21}, ()),
        ({"warmup_learning_rate": 0.3}, ()),
        ({"batch_size": 8}, ()),
        ({"momentum": 0.5}, ()),
        ({"weight_decay": 0.5}, ()),
        ({"seed": 1}, ()),
        ({"loss_mode": "training"}, ()),
        ({"requirement": "fixed"}, ()),
        ({}, (1, "task2")),
        ({}, (2, "data2")),
        ({}, (3, "layout2")),
        ({}, (4, "initial2")),
        ({}, (5, "client2")),
    ],
)
def test_the_key_changes_with_all_that_the_requirement_depends_on(
    changed: dict[str, object], other: tuple[int, str] | tuple[()]
) -> None:
    arguments = [CONFIG.model_copy(update=changed), *BASE[1:]]
    if other:
        arguments[other[0]] = other[1]
    assert requirement_key(*arguments) != requirement_key(*BASE)  # type: ignore[arg-type]


def test_the_usual_modes_key_is_what_it_was_before_there_was_another() -> None:
    solo = ("solo", 20, 0.2, 16, 0.0, 0.0, 0, "client", "initial")
    text = repr((solo, "task", "data", "layout"))
    assert requirement_key(*BASE) == "requirement-" + hashlib.sha256(text.encode()).hexdigest()[:16]
    fixed = {"requirement": "fixed"}
    kept = [CONFIG.model_copy(update={**fixed, "loss_mode": mode}) for mode in ("evaluation", "training")]
    assert len({requirement_key(config, *BASE[1:]) for config in kept}) == 1  # type: ignore[arg-type]


def test_the_key_does_not_change_with_what_does_not_matter() -> None:
    other = CONFIG.model_copy(update={"rounds": 7, "learning_rate": 0.9, "local_steps": 3, "fixed_requirement": 9.0})
    assert requirement_key(other, *BASE[1:]) == requirement_key(*BASE)  # type: ignore[arg-type]


def test_a_warm_up_that_diverges_is_an_error_and_stores_nothing(tmp_path: Path) -> None:
    store = DiskStore(tmp_path)
    good = Requirement(0.5, {"w": np.ones(2, np.float32)}, 0.9)
    with pytest.raises(ValueError, match="lower warmup-learning-rate"):
        stored_requirement(store, "k", lambda: replace(good, rho=float("nan")))
    assert read_requirement(store, "k") is None
    assert stored_requirement(store, "k", lambda: good) is good
    kept = read_requirement(store, "k")
    assert kept is not None
    assert (kept.rho, kept.solo_accuracy, kept.solo["w"].tolist()) == (0.5, 0.9, [1, 1])
