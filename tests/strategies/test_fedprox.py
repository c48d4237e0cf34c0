"""FedProx's server: FedAvg that sends mu."""

import math

import pytest
from flwr.app import ConfigRecord

from fedappeal.protocol import keys
from fedappeal.settings.config import ConfigError
from strategies import FedAvg, FedProx
from tests.grid import MemoryGrid, Volunteer, model
from tests.quadratics import CURVATURES, OPTIMA, RATE, config, learned, nodes
from tests.strategies.rounds.mixed_round import Join, answer, ask, check_mixed


def test_the_clients_are_told_the_rule_and_mu() -> None:
    grid = MemoryGrid({10: Volunteer("a")})
    (message,) = FedProx(proximal_mu=0.25).configure_train(
        1, model(1), ConfigRecord({"fedprox.proximal-mu": 9.0}), grid
    )
    told = message.content.config_records[keys.CONFIG]
    assert told[keys.LOCAL_RULE] == "prox"
    assert told["fedprox.proximal-mu"] == 0.25


def test_a_round_of_mixed_replies() -> None:
    joins = [Join(model(2, 0), {keys.NUM_EXAMPLES: 1}), Join(model(0, 4), {keys.NUM_EXAMPLES: 3})]
    check_mixed(FedProx(proximal_mu=0.1), joins, [0.5, 3.0])  # (1 * (2, 0) + 3 * (0, 4)) / 4


def test_the_server_is_fedavgs_to_the_bit() -> None:
    models = [model(0.1 * k, 1 / (k + 3)) for k in range(7)]
    results = []
    for strategy in (FedAvg(), FedProx(proximal_mu=0.7)):
        replies = [
            answer(m, Join(w), num_examples=k + 1)
            for k, (m, w) in enumerate(zip(ask(strategy), models, strict=False))
        ]
        results.append(strategy.aggregate_train(11, replies)[0])
    assert results[0] == results[1]


def test_mu_zero_is_fedavg_to_the_bit() -> None:
    run = config(3)
    learnt = [learned(s, MemoryGrid(nodes(run)), 7, run) for s in (FedAvg(), FedProx(proximal_mu=0.0))]
    assert learnt[0] == learnt[1]


def test_mu_moves_the_fixed_point_as_the_objective_says() -> None:
    """K steps on ``F_k + mu/2 (w - w_t)^2``, whose minimum is m_k = (a_k b_k + mu w_t) / (a_k + mu), take w_t to
    ``m_k + r_k (w_t - m_k)``, ``r_k = (1 - eta (a_k + mu))^K``, that is by ``(1 - r_k) (m_k - w_t)``, and
    ``m_k - w_t = a_k (b_k - w_t) / (a_k + mu)``: FedProx stops at the mean of the b_k weighted by
    ``(1 - r_k) a_k / (a_k + mu)``."""
    mu, clients, steps = 2.0, 3, 5
    weights = [(1 - (1 - RATE * (a + mu)) ** steps) * a / (a + mu) for a in CURVATURES]
    expected = sum(v * b for v, b in zip(weights, OPTIMA, strict=True)) / sum(weights)
    run = config(clients, local_steps=steps)
    assert learned(FedProx(proximal_mu=mu), MemoryGrid(nodes(run)), 40, run) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(
    ("mu", "allowed"), [(-0.1, "greater than or equal to 0"), (math.nan, "a finite number"), (math.inf, "a finite")]
)
def test_a_mu_that_is_not_allowed_is_named(mu: float, allowed: str) -> None:
    with pytest.raises(ConfigError, match=f"^fedprox.proximal-mu = {mu} is not allowed: input should be {allowed}"):
        FedProx(proximal_mu=mu)
