"""Per-FedAvg: rounds over two quadratic clients whose fixed point is known, and the server's side by hand."""

from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from torch import nn

from fedappeal.core.algorithm import personal_of
from fedappeal.core.plugins import parse_section
from fedappeal.core.registry import LOCAL_RULES
from fedappeal.protocol import keys
from fedappeal.settings.config import ConfigError, RunConfig, section
from fedappeal.settings.training import LocalTrainingSettings
from server.build import check_settings
from strategies import PerFedAvg
from tests.grid import Handler, MemoryGrid, Volunteer, model, run, values_of
from tests.problems import local_problem
from tests.strategies.rounds.test_mixed_replies import asked, mixed, reply


class Quadratic(nn.Module):
    """Predicts the parameter w, whatever x is."""

    def __init__(self, w: np.ndarray) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor(w))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.w.expand(len(x))


def quadratic_client(h: float, a: float, steps: int, beta: float) -> Handler:
    """A client with f(w) = h/2 (w - a)^2 that trains by the rule and the settings that TRAIN names."""

    def answer(message: Message) -> Message:
        told = message.content.config_records[keys.CONFIG]
        kind = LOCAL_RULES.load(str(told[keys.LOCAL_RULE]))
        rule = kind(parse_section(kind, section(told, kind.settings_name())))
        plain = {"learning-rate": beta, "batch-size": 1, "local-steps": steps}
        training = LocalTrainingSettings.parse(plain).changed_by(told)
        local = Quadratic(message.content.array_records[keys.ARRAYS]["w"].numpy())
        batches = np.zeros((steps * rule.draws(), 1), dtype=np.int64)
        x, y = torch.zeros(1, 1), torch.tensor([a], dtype=torch.float64)
        problem = local_problem(lambda out, target: h * ((out - target) ** 2).mean() / 2, x, y, batches, training)
        rule.train(local, problem)
        metrics = MetricRecord({keys.NUM_EXAMPLES: int(100 * h), keys.DECISION: 1})
        record = ArrayRecord({"w": Array(local.w.detach().numpy())})
        return Message(RecordDict({keys.METRICS: metrics, keys.ARRAYS: record}), reply_to=message)

    return answer


def after(strategy: Any, clients: list[Handler], rounds: int, start: float = 5.0) -> float:
    """The model after some rounds, through Flower's own methods."""
    grid = MemoryGrid(dict(enumerate(clients, 10)))
    arrays = ArrayRecord({"w": Array(np.array([start]))})
    for server_round in range(1, rounds + 1):
        replies = grid.send_and_receive(strategy.configure_train(server_round, arrays, ConfigRecord(), grid))
        found, _ = strategy.aggregate_train(server_round, replies)
        assert found is not None
        arrays = found
    return values_of(arrays)[0]


CLIENTS = ((1.0, 0.0), (4.0, 3.0))  # h and a


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        # alpha = 0.2: meta gradient m (w - a) with m = (1 - alpha h)^2 h: 0.64 and 0.04 * 4 = 0.16, so that
        # w = 0.16 * 3 / 0.8. FedAvg would stop at 4 * 3 / 5 = 2.4: a steep client adapts well by itself.
        ("second", 0.6),
        # m = (1 - alpha h) h: 0.8 and 0.2 * 4 = 0.8
        ("first", 1.5),
    ],
)
def test_two_quadratic_clients_meet_where_the_meta_gradients_cancel(order: str, expected: float) -> None:
    strategy = PerFedAvg(maml_learning_rate=0.2, maml_order=order)  # type: ignore[arg-type]
    clients = [quadratic_client(h, a, 1, 1.0) for h, a in CLIENTS]
    # one round by hand: each moves by -m (w - a), from w = 5
    m = {"second": (0.64, 0.16), "first": (0.8, 0.8)}[order]
    assert after(strategy, clients, 1) == pytest.approx(5 - (m[0] * 5 + m[1] * 2) / 2, rel=1e-12)
    assert after(strategy, clients, 50) == pytest.approx(expected, rel=1e-9)


def test_several_local_steps_have_their_own_fixed_point() -> None:
    # after s steps a client is at a + (1 - beta m)^s (w - a); m = 0.64, 0.16, beta = 0.5, s = 3
    moved = [1 - (1 - 0.5 * m) ** 3 for m in (0.64, 0.16)]
    expected = moved[1] * 3 / sum(moved)
    clients = [quadratic_client(h, a, 3, 0.5) for h, a in CLIENTS]
    assert after(PerFedAvg(maml_learning_rate=0.2), clients, 60) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("backwards", [False, True])
def test_of_mixed_replies_the_good_joins_are_averaged_without_weights(backwards: bool) -> None:
    strategy = PerFedAvg()
    replies, bad = mixed(asked(strategy))  # (2, 0) with 1 example, (0, 4) with 3
    arrays, metrics = strategy.aggregate_train(11, replies[::-1] if backwards else replies)
    assert values_of(arrays) == pytest.approx([1.0, 2.0], rel=1e-6)
    assert metrics is not None
    counts = {name: metrics[name] for name in ("joined", "sat-out", "left", "failed", "surplus")}
    assert counts == {"joined": 2, "sat-out": 1, "left": 1, "failed": bad, "surplus": 0}


def test_the_order_of_the_replies_does_not_matter() -> None:
    rng = np.random.default_rng(0)
    models = rng.normal(size=(6, 3)).astype(np.float32)
    found = []
    for order in (range(6), reversed(range(6)), (3, 0, 5, 1, 4, 2)):
        strategy = PerFedAvg()
        grid = MemoryGrid({node: Volunteer(str(node)) for node in range(10, 16)})
        messages = list(strategy.configure_train(1, model(0, 0, 0), ConfigRecord(), grid))
        replies = [reply(messages[k], model(*models[k]), decision=1) for k in order]
        found.append(values_of(strategy.aggregate_train(1, replies)[0]))
    np.testing.assert_allclose(found, [models.mean(axis=0, dtype=float)] * 3, rtol=1e-6, atol=1e-7)


def test_nobody_joining_leaves_the_model() -> None:
    strategy = PerFedAvg()
    assert strategy.aggregate_train(11, [reply(m, decision=0) for m in asked(strategy)])[0] is None
    asked(strategy, 12)
    assert strategy.aggregate_train(12, [])[0] is None


def test_what_is_sent() -> None:
    grid = MemoryGrid({10: Volunteer("a")})
    own = {"maml-learning-rate": 0.3, "maml-order": "first", "adaptation-steps": 4}
    settings = {f"perfedavg.{key}": value for key, value in own.items()}
    strategy = check_settings(RunConfig.parse({"strategy": "perfedavg", **settings})).build()
    (train,) = strategy.configure_train(1, model(1), ConfigRecord(), grid)
    (evaluate,) = strategy.configure_evaluate(1, model(1), ConfigRecord(), grid)
    named = {keys.STRATEGY: "perfedavg", **settings}
    for message, expected in (
        (train, named | {keys.LOCAL_RULE: "maml"}),
        (evaluate, named | {keys.SPLIT: keys.TEST_SPLIT}),
    ):
        told = dict(message.content.config_records[keys.CONFIG])
        assert {k: told[k] for k in expected} == expected
    adaptation = personal_of(strategy).adaptation()
    assert adaptation is not None
    assert (adaptation[0].name, adaptation[1]) == ("sgd", {"local-steps": 4, "learning-rate": 0.3})
    assert personal_of(PerFedAvg(adaptation_steps=0)).adaptation() is None


def test_the_model_is_reported_as_sent_and_adapted() -> None:
    def says(accuracy: float, adapted: float, loss: float) -> dict[str, float]:
        return {"accuracy": accuracy, "adapted-accuracy": adapted, keys.ADAPTED_LOSS: loss}

    grid = MemoryGrid(
        {
            10: Volunteer("a", evaluation=says(0.5, 0.75, 1.0)),
            11: Volunteer("b", evaluation=says(0.25, 0.5, 2.0)),
            12: Volunteer("c", evaluation={"accuracy": 0.75}),
            13: Volunteer("liar", evaluation=says(0.5, 1.5, 1.0)),
            14: Volunteer("unseen", evaluation=says(0.5, 0.875, 3.0), role=keys.UNSEEN),
        }
    )
    _, watch = run(PerFedAvg(min_clients=5), grid, 1)
    metrics = watch.records[0].metrics
    assert metrics["accuracy"] == pytest.approx(0.5)  # of a, b and c
    assert metrics["adapted_accuracy"] == pytest.approx(0.625)  # of a and b, which reported it
    assert metrics["adapted_loss"] == pytest.approx(1.5)
    assert metrics["unseen_adapted_accuracy"] == pytest.approx(0.875)
    assert "adapted-accuracy = 1.5 is not allowed" in watch.records[0].failures["liar"]


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"maml_learning_rate": 0.0}, "maml-learning-rate = 0.0 is not allowed: input should be greater than 0"),
        ({"maml_order": "third"}, "maml-order = 'third' is not allowed: input should be 'first' or 'second'"),
        (
            {"adaptation_steps": -1},
            "adaptation-steps = -1 is not allowed: input should be greater than or equal to 0",
        ),
    ],
)
def test_a_setting_that_is_not_allowed_is_one_line(settings: dict[str, Any], line: str) -> None:
    with pytest.raises(ConfigError) as error:
        PerFedAvg(**settings)
    assert str(error.value) == f"perfedavg.{line}"


@pytest.mark.parametrize(("strategy", "rule"), [("perfedavg", "maml"), ("pfedme", "moreau")])
@pytest.mark.parametrize("key", ["momentum", "weight_decay"])
def test_momentum_and_weight_decay_are_refused_at_the_start(strategy: str, rule: str, key: str) -> None:
    line = f"^{key.replace('_', '-')} = 0.5 is not allowed with local-rule = '{rule}': 0$"
    with pytest.raises(ConfigError, match=line):
        check_settings(RunConfig(strategy=strategy, **{key: 0.5}))  # type: ignore[arg-type]
    check_settings(RunConfig(strategy="fedavg", **{key: 0.5}))  # type: ignore[arg-type]
