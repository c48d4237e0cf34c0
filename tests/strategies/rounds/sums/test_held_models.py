"""Median and trimmed mean of a round's models, by hand and by NumPy."""

import weakref

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord
from hypothesis import given
from hypothesis import strategies as st

from fedappeal.protocol.keys import Decision
from fedappeal.settings.config import ConfigError
from strategies import FedAvg, PFedMe
from strategies.rounds.exchange.members import Member
from strategies.rounds.round import Reply, RoundRecord
from strategies.rounds.strategy import Strategy, shared_of
from strategies.rounds.sums.weighted_sum import HeldModels
from tests.grid import model, opened, values_of
from tests.strategies.made import MADE

MODELS = [(1.0, 10.0), (2.0, -1e30), (3.0, 30.0), (4.0, 40.0), (1e30, 50.0)]


def next_model(strategy: Strategy, *models: tuple[float, ...]) -> list[float]:
    round = opened(strategy, 1, model(0.0, 0.0))
    for i, values in enumerate(models):
        strategy.add(round, Reply(Member(f"c{i}", i), Decision.JOINED, 10**i, {}, model(*values)))
    return values_of(strategy.finish(round))


def test_the_median_of_each_coordinate_whatever_the_weights() -> None:
    assert next_model(FedAvg(aggregation="median"), *MODELS) == [3.0, 30.0]
    assert next_model(FedAvg(aggregation="median"), *MODELS[:4]) == pytest.approx([2.5, 20.0])


def test_the_trimmed_mean_leaves_the_ends_out() -> None:
    assert next_model(FedAvg(aggregation="trimmed-mean", trim_share=0.2), *MODELS) == pytest.approx([3.0, 80 / 3])
    # A fifth of four is less than one: one is left out all the same.
    assert next_model(FedAvg(aggregation="trimmed-mean"), *MODELS[:4]) == pytest.approx([2.5, 20.0])


def test_pfedmes_mixing_moves_towards_the_median() -> None:
    assert next_model(PFedMe(aggregation="median", server_mixing=0.5), *MODELS) == pytest.approx([1.5, 15.0])


@given(st.integers(1, 9), st.sampled_from([0.01, 0.2, 0.49]))
def test_of_few_and_of_many_models_as_numpy_has_it(count: int, share: float) -> None:
    values = np.random.default_rng(count).normal(size=(count, 5))
    held = HeldModels(ArrayRecord({"w": Array(np.zeros(5))}), share)
    for row in values:
        held.add(ArrayRecord({"w": Array(row)}), 1.0)
    trim = 0 if count < 3 else min((count - 1) // 2, max(1, int(share * count)))
    expected = np.mean(np.sort(values, axis=0)[trim : count - trim], axis=0)
    found = held.combine(keep=0.0, scale=1.0 / held.weight)["w"].numpy()
    np.testing.assert_allclose(found, expected)
    if trim == (count - 1) // 2:
        np.testing.assert_allclose(found, np.median(values, axis=0))


AVERAGING = ("fedavg", "fedprox", "fedadam", "ditto", "perfedavg", "pfedme")
WEIGHTING = (
    *("maxfl", "fedalign", "adagd", "maxfl-adagd", "fednova", "scaffold", "fedau", "oracle", "mifa", "qfedavg"),
    *("afl", "term", "mwfed"),
)


@pytest.mark.parametrize("name", AVERAGING)
def test_strategies_whose_server_averages_models_take_their_median(name: str) -> None:
    assert shared_of(MADE[name](aggregation="median")).aggregation == "median"


@pytest.mark.parametrize("name", WEIGHTING)
def test_strategies_that_weight_clients_refuse_it(name: str) -> None:
    with pytest.raises(ConfigError, match=f"aggregation = 'median' is not allowed with strategy = '{name}'"):
        MADE[name](aggregation="median")


def test_nothing_else_changes() -> None:
    assert next_model(FedAvg(), (1.0, 2.0), (3.0, 4.0)) == pytest.approx([31 / 11, 42 / 11])
    assert opened(FedAvg(), 1, model(0.0)).sum.__class__ is not HeldModels
    assert RoundRecord(1).as_line().get("bounded") is None


def test_the_models_are_let_go_of_with_the_round() -> None:
    held, row = HeldModels(ArrayRecord({"w": Array(np.zeros(5))}), 0.5), np.ones(5)
    held.add_checked({"w": row}, 1.0)
    alive = weakref.ref(row)
    del row
    assert alive() is not None
    held.combine(keep=0.0, scale=1.0)
    assert alive() is None
