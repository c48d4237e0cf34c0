"""The requirement rho_k: by an independent loop, computed once, and stored under all it depends on."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from client.limits.guard import Guard
from client.requirement import (
    Fixed,
    MetricReached,
    Solo,
    checked_requirement,
    read_requirement,
    requirement_key,
    stored_requirement,
)
from client.settings import NodeSettings
from client.state.store import DiskStore
from client.training.models import arrays_of
from client.training.requests import Arithmetic
from fedappeal.core.plugins import parse_section
from fedappeal.core.registry import REQUIREMENTS, STRATEGIES
from fedappeal.core.requirement import LOSS, METRIC, UNMEASURED, Evaluation, Requirement, RequirementKind, WarmUp
from fedappeal.protocol import keys
from fedappeal.protocol.draws import Minibatches
from fedappeal.settings.config import ConfigError, RunConfig, Scalar
from server.build import check_settings
from tests.node import Node, changed, participant_of, run_config

CONFIG = run_config(clients=4, model="logistic", solo__steps=20, solo__learning_rate=0.2, batch_size=16)
NODE = NodeSettings(partition_id=2, device="cpu")


def test_the_solo_warm_up_is_plain_sgd_from_the_initial_model(tmp_path: Path) -> None:
    volunteer = participant_of(CONFIG, NODE, DiskStore(tmp_path))
    # Not the run's own: w_0 is what the roll call brought.
    initial = arrays_of(volunteer.learner.task.initial_model(9))
    requirement = volunteer.begin_run("key", initial)

    data = volunteer.learner.data
    layer = nn.Linear(64, 10)
    with torch.no_grad():
        layer.weight.copy_(torch.from_numpy(initial["output.weight"]))
        layer.bias.copy_(torch.from_numpy(initial["output.bias"]))
    x = data.train.x.reshape(len(data.train), -1)
    for batch in np.asarray(Minibatches(0, "client-0002", 0, len(data.train), 20, 16, "warm-up")):
        loss = functional.cross_entropy(layer(x[batch]), data.train.y[batch])
        gradients = torch.autograd.grad(loss, [layer.weight, layer.bias])
        with torch.no_grad():
            for parameter, gradient in zip((layer.weight, layer.bias), gradients, strict=True):
                parameter -= 0.2 * gradient
    np.testing.assert_allclose(requirement.solo["output.weight"], layer.weight.detach().numpy(), atol=1e-6)
    np.testing.assert_allclose(requirement.solo["output.bias"], layer.bias.detach().numpy(), atol=1e-6)
    assert requirement.rho == pytest.approx(functional.cross_entropy(layer(x), data.train.y).item(), abs=1e-6)
    predicted = layer(data.test.x.reshape(len(data.test), -1)).argmax(dim=1)
    assert requirement.solo_score == pytest.approx((predicted == data.test.y).float().mean().item())


def test_a_requirement_is_computed_once_and_kept_by_a_new_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = participant_of(CONFIG, NODE, DiskStore(tmp_path))
    initial = arrays_of(first.learner.task.initial_model(0))
    requirement = first.begin_run("key", initial)

    def fail(*args: object) -> None:
        raise AssertionError("computed twice")

    monkeypatch.setattr(Solo, "make", fail)
    again = participant_of(CONFIG, NODE, DiskStore(tmp_path))
    for found in (first.requirement("key"), again.requirement("key"), again.begin_run("another-run", initial)):
        assert found.rho == requirement.rho
        assert found.solo_score == requirement.solo_score
        np.testing.assert_array_equal(found.solo["output.weight"], requirement.solo["output.weight"])


def test_without_a_roll_call_the_requirement_starts_from_the_tasks_model(tmp_path: Path) -> None:
    one = participant_of(CONFIG, NODE, DiskStore(tmp_path / "a"))
    other = participant_of(CONFIG, NODE, DiskStore(tmp_path / "b"))
    initial = arrays_of(other.learner.task.initial_model(CONFIG.seed))
    assert one.requirement("").rho == other.begin_run("k", initial).rho


def test_a_fixed_requirement_trains_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Arithmetic, "evaluate", None)
    monkeypatch.setattr(Arithmetic, "train", None)
    config = changed(CONFIG, requirement="fixed", fixed__loss=0.75)
    volunteer = participant_of(config, NODE, DiskStore(tmp_path))
    requirement = volunteer.begin_run("k", arrays_of(volunteer.learner.task.initial_model(0)))
    assert requirement.rho == 0.75
    assert requirement.solo == {}


EQUAL = {"solo__effort": "equal", "rounds": 6, "local_steps": 5, "clients_per_round": 2}
"""Two of four clients a round: 6 x 5 / 2 steps."""


def test_an_equal_effort_is_the_steps_of_the_run(tmp_path: Path) -> None:
    equal, as_many = changed(CONFIG, **EQUAL), changed(CONFIG, solo__steps=15)
    one, other = (participant_of(c, NODE, DiskStore(tmp_path / str(n))) for n, c in enumerate((equal, as_many)))
    initial = arrays_of(one.learner.task.initial_model(0))
    assert one.begin_run("k", initial).rho == other.begin_run("k", initial).rho
    # A run that continues to more rounds asks for no more of its clients than it began with.
    longer = participant_of(equal.continued(60), NODE, DiskStore(tmp_path / "0"))
    assert longer.requirement("k").rho == one.requirement("k").rho


def test_an_owners_limit_caps_an_equal_effort_and_it_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    volunteer = participant_of(changed(CONFIG, **EQUAL), NODE, DiskStore(tmp_path))
    volunteer.guard = Guard(None, "max-steps=7")
    volunteer.guard.limits = volunteer.guard.limits_now()
    with caplog.at_level("INFO", logger="fedappeal.client"):
        volunteer.begin_run("k", arrays_of(volunteer.learner.task.initial_model(0)))
    assert "solo.effort = equal would take 15 steps: this client's max-steps = 7" in caplog.messages


BASE = ("task", "data", "layout", "initial", "client")


def key(config: RunConfig = CONFIG, rest: tuple[str, ...] = BASE) -> str:
    kind = REQUIREMENTS.load(config.requirement)
    return requirement_key(kind(parse_section(kind, config.section(kind.name))), config, *rest)


@pytest.mark.parametrize(
    ("settings", "other"),
    [
        ({"solo__steps": 21}, ()),
        ({"solo__learning_rate": 0.3}, ()),
        ({"solo__effort": "equal"}, ()),
        ({"batch_size": 8}, ()),
        ({"momentum": 0.5}, ()),
        ({"weight_decay": 0.5}, ()),
        ({"seed": 1}, ()),
        ({"loss_mode": "training"}, ()),
        ({"requirement": "fixed"}, ()),
        ({"requirement": "metric"}, ()),
        ({}, (0, "task2")),
        ({}, (1, "data2")),
        ({}, (2, "layout2")),
        ({}, (3, "initial2")),
        ({}, (4, "client2")),
    ],
)
def test_the_key_changes_with_all_that_the_requirement_depends_on(
    settings: dict[str, Scalar], other: tuple[int, str] | tuple[()]
) -> None:
    rest = list(BASE)
    if other:
        rest[other[0]] = other[1]
    assert key(changed(CONFIG, **settings), tuple(rest)) != key()


def test_a_number_does_not_depend_on_how_losses_are_measured() -> None:
    for kind in ("fixed", "metric"):
        kept = [
            changed(CONFIG, requirement=kind, loss_mode=mode, batch_size=size)
            for mode in ("evaluation", "training")
            for size in (8, 16)
        ]
        assert len({key(config) for config in kept}) == 1
    assert key(changed(CONFIG, requirement="fixed", fixed__loss=0.5)) != key(changed(CONFIG, requirement="fixed"))


def test_the_key_does_not_change_with_what_does_not_matter() -> None:
    other = changed(CONFIG, rounds=7, learning_rate=0.9, local_steps=3, fixed__loss=9.0)
    assert key(other) == key()


def test_a_warm_up_that_diverges_is_an_error_and_stores_nothing(tmp_path: Path) -> None:
    store = DiskStore(tmp_path)
    good = Requirement(0.5, {"w": np.ones(2, np.float32)}, 0.9)
    diverged = replace(good, rho=float("nan"))
    with pytest.raises(ConfigError, match=r"lower solo\.learning-rate"):
        stored_requirement(store, "k", lambda: checked_requirement(kind_that_makes(diverged, Solo), NoClient()))
    assert read_requirement(store, "k") is None
    assert stored_requirement(store, "k", lambda: good) is good
    kept = read_requirement(store, "k")
    assert kept is not None
    assert (kept.rho, kept.solo_score, kept.solo["w"].tolist()) == (0.5, 0.9, [1, 1])


@pytest.mark.parametrize("found", [None, 0.5, Requirement(math.inf), Requirement("much")])  # type: ignore[arg-type]
def test_a_kind_of_ones_own_that_makes_no_requirement_is_one_line(found: object) -> None:
    with pytest.raises(ConfigError, match=r"^requirement made-up (returned|ended with)") as error:
        checked_requirement(kind_that_makes(found, RequirementKind), NoClient())
    assert "\n" not in str(error.value)
    assert "solo" not in str(error.value).replace("solo=", "").replace("solo_score", "")


def kind_that_makes(found: object, base: type[RequirementKind]) -> RequirementKind:
    """Return a kind of requirement that makes whatever it is given."""
    kind = type("MadeUp", (base,), {"make": lambda self, client: found})
    made_up = kind()
    assert isinstance(made_up, RequirementKind)
    return made_up


# -- kinds of requirement --------------------------------------------------------------------------------


class NoClient:
    """A client that must not be asked to train or to measure."""

    def train(self, steps: int, learning_rate: float) -> dict[str, np.ndarray]:
        raise AssertionError("trained")

    def train_loss(self, arrays: object) -> float:
        raise AssertionError("measured")

    def test_score(self, arrays: object) -> float:
        raise AssertionError("measured")


def test_the_kinds_by_name() -> None:
    kinds = {name: REQUIREMENTS.load(name) for name in REQUIREMENTS.built_in}
    assert kinds == {"solo": Solo, "fixed": Fixed, "metric": MetricReached}
    assert {name: kind.of for name, kind in kinds.items()} == {"solo": LOSS, "fixed": LOSS, "metric": METRIC}
    assert [name for name, kind in kinds.items() if kind.trains] == ["solo"]


def test_what_a_kind_requires() -> None:
    assert Fixed(Fixed.Settings(loss=0.25)).make(NoClient()) == Requirement(0.25, solo_score=math.nan)
    required = MetricReached(MetricReached.Settings(reach=0.9)).make(NoClient())
    assert (required.rho, required.of, required.solo) == (0.9, METRIC, {})
    with pytest.raises(ConfigError, match=r"^metric\.reach = inf is not allowed: input should be a finite"):
        parse_section(MetricReached, {"reach": float("inf")})


@pytest.mark.parametrize(
    ("evaluation", "by_loss", "by_accuracy"),
    [
        (Evaluation(0.4, 0.4), True, False),
        (Evaluation(0.5, 0.5), False, True),  # a loss has to be below, an accuracy may be equal
        (Evaluation(0.6, 0.6), False, True),
        (Evaluation(math.nextafter(0.5, 0), math.nextafter(0.5, 0)), True, False),
        (UNMEASURED, False, False),
    ],
)
def test_when_a_model_meets_it(evaluation: Evaluation, by_loss: bool, by_accuracy: bool) -> None:
    assert Requirement(0.5).met(evaluation) is by_loss
    assert Requirement(0.5, of=METRIC).met(evaluation) is by_accuracy


class Lower(RequirementKind):
    """The loss of w_0 after one step of training, less a margin."""

    trains = True

    def make(self, client: WarmUp) -> Requirement:
        return Requirement(client.train_loss(client.train(1, 0.1)) - 0.5)


def test_a_kind_of_ones_own(tmp_path: Path) -> None:
    config = changed(CONFIG, requirement=f"{__name__}:Lower", strategy="fedavg")
    node = Node(config, tmp_path, allow="tests")
    node("query")
    one = changed(CONFIG, strategy="fedavg", solo__steps=1, solo__learning_rate=0.1)
    solo = Node(one, tmp_path / "solo")
    solo("query")
    found, plain = (n.participants.of(n.context).requirement("k").rho for n in (node, solo))
    assert found == pytest.approx(plain - 0.5, rel=1e-12)


# -- an accuracy that the model must reach ---------------------------------------------------------------

TARGET = run_config(
    clients=4, model="logistic", strategy="fedavg", requirement="metric", metric__reach=0.75, local_steps=1
)


@pytest.fixture(scope="module")
def good() -> dict[str, np.ndarray]:
    """A model that reaches the accuracy on a client's data."""
    node = Node(changed(TARGET, local_steps=300, learning_rate=0.5))
    content = node("train", mandatory=1)
    return {name: np.array(array) for name, array in node.layout.unpack(content.array_records[keys.ARRAYS]).items()}


def test_a_client_appeals_by_accuracy(good: dict[str, np.ndarray]) -> None:
    node = Node(TARGET)
    for arrays, joins in ((node.initial, 0), (good, 1)):
        on_train = node.metrics("evaluate", arrays, split=keys.TRAIN_SPLIT)
        on_test = node.metrics("evaluate", arrays, split=keys.TEST_SPLIT)
        assert (on_train["accuracy"] >= 0.75) == bool(joins)  # type: ignore[operator]
        assert node.metrics("train", arrays)[keys.DECISION] == joins
        assert on_test[keys.APPEALED] == int(on_test["accuracy"] >= 0.75)  # type: ignore[operator]
        assert on_test[keys.APPEALED_TRAIN] == joins
        assert "preferred-accuracy" not in on_test, "there is no solo model to prefer"


def test_the_model_that_meets_it_is_preferred(good: dict[str, np.ndarray], tmp_path: Path) -> None:
    node = Node(TARGET, tmp_path)
    node("query")
    for arrays in (node.initial, good):
        node("evaluate", arrays, final=1)
        kept = DiskStore(tmp_path).read("preferred")
        assert kept is not None
        assert kept.values["which"] == "global", "there is no other"
        np.testing.assert_array_equal(kept.arrays["output.bias"], arrays["output.bias"])
    again = node.restarted()
    required = again.participants.of(again.context).requirement("k")
    assert (required.rho, required.of) == (0.75, METRIC)


def test_mwfed_counts_who_is_satisfied_by_accuracy(good: dict[str, np.ndarray]) -> None:
    node = Node(changed(TARGET, strategy="mwfed"))
    assert [node.metrics("train", arrays, mandatory=1)["satisfied"] for arrays in (node.initial, good)] == [0, 1]


@pytest.mark.parametrize("strategy", STRATEGIES.built_in)
def test_a_strategy_that_compares_losses_refuses_an_accuracy_at_the_start(strategy: str) -> None:
    config = changed(TARGET, strategy=strategy)
    if strategy not in ("maxfl", "maxfl-adagd"):  # whose weights are of F_k - rho_k
        check_settings(config)
        return
    with pytest.raises(ConfigError) as error:
        check_settings(config)
    assert str(error.value) == (
        f"requirement = 'metric' is not allowed with strategy = '{strategy}': it compares a client's loss with "
        "rho_k, which has to be a loss (solo, fixed)"
    )


@pytest.mark.parametrize("more", [{"rounds": 7}, {"local_steps": 6}, {"clients_per_round": 3}])
def test_the_key_of_an_equal_effort_holds_what_it_is_equal_to(more: dict[str, Scalar]) -> None:
    assert key(changed(CONFIG, **EQUAL)) != key(changed(CONFIG, **{**EQUAL, **more}))
    assert key(changed(CONFIG, **more)) == key(), "a set effort depends on none of it"
