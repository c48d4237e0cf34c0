"""pFedMe: rounds over two quadratic clients whose fixed point is known, and the server's side by hand."""

from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord

from fedappeal.core.algorithm import personal_of
from fedappeal.protocol import keys
from fedappeal.settings.config import ConfigError, RunConfig
from server.build import check_settings
from strategies import PFedMe
from tests.grid import MemoryGrid, Volunteer, model, values_of
from tests.strategies.rounds.test_mixed_replies import asked, mixed, reply
from tests.strategies.test_perfedavg import CLIENTS, after, quadratic_client


def pulled(h: float, strength: float, step: float, inner: int) -> float:
    """The share m of lambda (w - theta_K) = m (w - a): theta_K keeps (1 - p (h + lambda))^K of its way to theta*.

    theta* = (h a + lambda w) / (h + lambda), so that w - theta* = h (w - a) / (h + lambda).
    """
    return strength * h / (h + strength) * (1 - (1 - step * (h + strength)) ** inner)


def test_two_quadratic_clients_meet_where_the_envelopes_gradients_cancel() -> None:
    # lambda = 2; h = 1, 4: m = 2/3 and 4/3, so that w = 4/3 * 3 / 2 = 2 (FedAvg would stop at 2.4).
    # 30 inner steps of 0.2 leave 0.4^30 of the way to theta* and less.
    strategy = PFedMe(moreau_lambda=2.0, moreau_steps=30, personal_learning_rate=0.2)
    clients = [quadratic_client(h, a, 1, 0.8) for h, a in CLIENTS]
    assert after(strategy, clients, 1) == pytest.approx(5 - 0.8 * (2 / 3 * 5 + 4 / 3 * 2) / 2, rel=1e-9)
    assert after(strategy, clients, 60) == pytest.approx(2.0, rel=1e-9)


@pytest.mark.parametrize("inner", [1, 2, 3])
def test_few_inner_steps_have_a_fixed_point_of_their_own(inner: int) -> None:
    strength, step = 3.0, 0.1
    weights = [pulled(h, strength, step, inner) for h, _ in CLIENTS]
    strategy = PFedMe(moreau_lambda=strength, moreau_steps=inner, personal_learning_rate=step)
    clients = [quadratic_client(h, a, 1, 1.0) for h, a in CLIENTS]
    expected = weights[1] * 3 / sum(weights)
    assert after(strategy, clients, 60) == pytest.approx(expected, rel=1e-9)
    if inner == 1:  # the proximal term is zero where theta is still w: m = lambda p h, FedAvg's fixed point
        assert expected == pytest.approx(2.4)


@pytest.mark.parametrize("mixing", [0.5, 1.0, 1.5])
def test_the_server_mixes_the_average_into_its_model(mixing: float) -> None:
    strategy = PFedMe(server_mixing=mixing, moreau_lambda=2.0, moreau_steps=30, personal_learning_rate=0.2)
    clients = [quadratic_client(h, a, 1, 0.8) for h, a in CLIENTS]
    moved = 0.8 * (2 / 3 * 5 + 4 / 3 * 2) / 2
    assert after(strategy, clients, 1) == pytest.approx(5 - mixing * moved, rel=1e-9)
    assert after(strategy, clients, 60) == pytest.approx(2.0, rel=1e-9)


@pytest.mark.parametrize(
    ("mixing", "expected"),
    [
        # the average of (2, 0) and (0, 4) is (1, 2), whatever their examples; sent was (1, 1)
        (1.0, [1.0, 2.0]),
        (0.25, [1.0, 1.25]),
        (2.0, [1.0, 3.0]),
    ],
)
@pytest.mark.parametrize("backwards", [False, True])
def test_only_the_good_joins_of_mixed_replies_move_the_model(
    mixing: float, expected: list[float], backwards: bool
) -> None:
    strategy = PFedMe(server_mixing=mixing)
    replies, bad = mixed(asked(strategy))
    arrays, metrics = strategy.aggregate_train(11, replies[::-1] if backwards else replies)
    assert values_of(arrays) == pytest.approx(expected, rel=1e-6)
    assert metrics is not None
    counts = {name: metrics[name] for name in ("joined", "sat-out", "left", "failed", "surplus")}
    assert counts == {"joined": 2, "sat-out": 1, "left": 1, "failed": bad, "surplus": 0}


def test_the_order_of_the_replies_does_not_matter() -> None:
    models = np.random.default_rng(1).normal(size=(5, 2)).astype(np.float32)
    found = []
    for order in ((0, 1, 2, 3, 4), (4, 3, 2, 1, 0), (2, 0, 4, 1, 3)):
        strategy = PFedMe(server_mixing=0.5)
        grid = MemoryGrid({node: Volunteer(str(node)) for node in range(10, 15)})
        messages = list(strategy.configure_train(1, model(1, 1), ConfigRecord(), grid))
        replies = [reply(messages[k], model(*models[k]), decision=1) for k in order]
        found.append(values_of(strategy.aggregate_train(1, replies)[0]))
    np.testing.assert_allclose(found, [0.5 + 0.5 * models.mean(axis=0, dtype=float)] * 3, rtol=1e-6, atol=1e-7)


def test_nobody_joining_leaves_the_model() -> None:
    strategy = PFedMe()
    assert strategy.aggregate_train(11, [reply(m, decision=0) for m in asked(strategy)])[0] is None
    asked(strategy, 12)
    assert strategy.aggregate_train(12, [])[0] is None


def test_what_is_sent() -> None:
    grid = MemoryGrid({10: Volunteer("a")})
    own = {"moreau-lambda": 4.0, "moreau-steps": 7, "personal-learning-rate": 0.125, "server-mixing": 0.5}
    settings = {f"pfedme.{key}": value for key, value in own.items()}
    strategy = check_settings(RunConfig.parse({"strategy": "pfedme", **settings})).build()
    assert isinstance(strategy, PFedMe)
    assert strategy.settings.server_mixing == 0.5
    (train,) = strategy.configure_train(1, model(1), ConfigRecord(), grid)
    (evaluate,) = strategy.configure_evaluate(1, model(1), ConfigRecord(), grid)
    named = {keys.STRATEGY: "pfedme", **settings}
    for message, expected in (
        (train, named | {keys.LOCAL_RULE: "moreau"}),
        (evaluate, named | {keys.SPLIT: keys.TEST_SPLIT}),
    ):
        told = dict(message.content.config_records[keys.CONFIG])
        assert {k: told[k] for k in expected} == expected
    adaptation = personal_of(strategy).adaptation()
    assert adaptation is not None
    rule, training = adaptation
    assert (rule.name, rule.settings.proximal_mu) == ("prox", 4.0)
    assert training == {"local-steps": 7, "learning-rate": 0.125}


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"moreau_lambda": 0.0}, "moreau-lambda = 0.0 is not allowed: input should be greater than 0"),
        ({"server_mixing": -1.0}, "server-mixing = -1.0 is not allowed: input should be greater than 0"),
        ({"moreau_steps": 0}, "moreau-steps = 0 is not allowed: input should be greater than or equal to 1"),
        (
            {"moreau_lambda": 40.0},
            "personal-learning-rate = 0.05 is not allowed with pfedme.moreau-lambda = 40: "
            "less than 0.05 (2 / lambda)",
        ),
    ],
)
def test_a_setting_that_is_not_allowed_is_one_line(settings: dict[str, Any], line: str) -> None:
    with pytest.raises(ConfigError) as error:
        PFedMe(**settings)
    assert str(error.value) == f"pfedme.{line}"
