"""AFL's server against the authors' rule written out, its mixture in the simplex, and the worst client's loss."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedappeal.core.requirement import Evaluation, Measured
from fedappeal.protocol import keys
from fedappeal.settings.config import ConfigError
from strategies import AFL
from strategies.afl import onto_simplex
from tests.grid import model, values_of
from tests.strategies.played import LEAVES, Floats, Joins, Turns, close, drawn, play
from tests.strategies.rounds.mixed_round import Join, answer, ask, check_mixed

START = np.array([0.5, -1.0, 2.0, 0.0, 3.0])


def by_bisection(point: Floats, total: float) -> Floats:
    """The nearest point with entries of at least 0 that add up to ``total``: ``max(point - theta, 0)``."""
    low, high = float(point.min()) - total, float(point.max())
    for _ in range(200):
        theta = (low + high) / 2
        low, high = (theta, high) if np.maximum(point - theta, 0).sum() > total else (low, theta)
    return np.maximum(point - high, 0)


def written_out(start: Floats, rounds: Sequence[Turns], clients: int, rate: float) -> list[Floats]:
    """lambda moves by the losses of the clients that joined, which share out what they had together."""
    mixture = dict.fromkeys(range(clients), 1 / clients)
    w, models = start.copy(), []
    for turns in rounds:
        joins = {k: turn for k, turn in turns.items() if isinstance(turn, Joins)}
        if joins:
            shares = np.array([mixture[k] for k in joins])
            weights = shares if shares.sum() else np.ones(len(joins))
            updates = np.array([turn.update for turn in joins.values()])
            w = w + weights @ updates / weights.sum()
            losses = np.array([turn.metrics[keys.LOSS] for turn in joins.values()])
            moved = by_bisection(shares + rate * losses, float(shares.sum())) if shares.sum() else shares
            mixture |= zip(joins, moved, strict=True)
        for k, turn in turns.items():
            if turn == LEAVES and mixture.pop(k, None) is not None:
                total = sum(mixture.values())
                mixture = {j: (share / total if total else 1 / len(mixture)) for j, share in mixture.items()}
        models.append(w)
    return models


@pytest.mark.parametrize("resumed_after", [0, 7])
@pytest.mark.parametrize("rate", [0.02, 0.5])
def test_several_rounds_are_the_authors_rule(resumed_after: int, rate: float) -> None:
    rounds = drawn(1, 25, [1.0, 0.6, 0.4, 0.2], loss=keys.LOSS)
    rounds[4] = {}
    rounds[11] = {**rounds[11], 2: LEAVES}
    rounds[12:] = [{k: turn for k, turn in turns.items() if k != 2} for turns in rounds[12:]]
    models = play(lambda: AFL(mixture_rate=rate), START, rounds, 4, resumed_after)
    close(models, written_out(START, rounds, 4, rate))


@given(st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=12), st.floats(0.01, 1.0))
def test_the_projection_is_the_nearest_point(values: list[float], total: float) -> None:
    got = onto_simplex(np.array(values), total)
    assert got.min() >= 0
    assert got.sum() == pytest.approx(total)
    np.testing.assert_allclose(got, by_bisection(np.array(values), total), atol=1e-9)


@given(st.lists(st.sampled_from([0.0, 5e-324, 1.0, 1e300, 1.7e308]), min_size=1, max_size=6))
def test_absurd_losses_leave_the_mixture_in_the_simplex(losses: list[float]) -> None:
    start = np.full(len(losses), 1 / len(losses))
    got = onto_simplex(start + 0.1 * np.array(losses), 1.0)
    assert got.min() >= 0
    assert got.sum() == pytest.approx(1.0)


def test_the_mixture_stays_in_the_simplex_while_clients_come_and_go() -> None:
    strategy = AFL(mixture_rate=0.3)
    rounds = drawn(3, 30, [0.5, 0.5, 0.5, 0.5], loss=keys.LOSS)
    rounds[20] = {**rounds[20], 1: LEAVES}
    rounds[21:] = [{k: turn for k, turn in turns.items() if k != 1} for turns in rounds[21:]]

    def same() -> AFL:
        return strategy

    w = START
    for number, turns in enumerate(rounds):
        (w,) = play(same, w, [turns], 4)
        mixture = strategy.mixture
        assert sum(mixture.values()) == pytest.approx(1.0)
        assert min(mixture.values()) >= 0
        assert ("101" in mixture) == (number <= 20)  # its share goes to the others in the next round


def test_it_finds_the_smallest_worst_loss() -> None:
    """Losses ``a (w - b)^2 / 2 + c``: the averages of model and mixture are where the two worst are equal."""
    a, b, c = np.array([1.0, 4.0, 1.0]), np.array([0.0, 1.0, 0.5]), np.array([0.0, 0.0, 0.0])
    grid = np.linspace(-1, 2, 30001)
    worst = (a[:, None] * (grid - b[:, None]) ** 2 / 2 + c[:, None]).max(axis=0)
    strategy, w, total = AFL(mixture_rate=0.05), np.array([2.0]), []

    def same() -> AFL:
        return strategy

    for _ in range(400):
        losses, gradients = a * (w - b) ** 2 / 2 + c, a * (w - b)
        turns = {k: Joins(np.array([-0.05 * gradients[k]]), 1, {keys.LOSS: float(losses[k])}) for k in range(3)}
        (w,) = play(same, w, [turns], 3)
        total.append(w[0])
    found = float(np.mean(total[200:]))
    assert found == pytest.approx(grid[worst.argmin()], abs=0.01)
    mixture = np.array([strategy.mixture[str(100 + k)] for k in range(3)])
    losses = a * (found - b) ** 2 / 2 + c
    assert float(mixture @ losses) == pytest.approx(losses.max(), rel=0.02)  # its loss is the worst client's


def test_where_the_mixture_lies_on_absent_clients_the_others_count_alike() -> None:
    strategy = AFL(mixture_rate=1e6)
    messages = list(ask(strategy, 1))
    joins = [(model(3, 1), 0.0), (model(1, 3), 0.0), (model(1, 1), 9.0)]
    replies = [answer(m, Join(w, {keys.LOSS: loss})) for m, (w, loss) in zip(messages, joins, strict=False)]
    strategy.aggregate_train(1, replies)
    shares = [strategy.mixture[str(node)] for node in (10, 11, 12)]
    assert shares == pytest.approx([0, 0, 3 / 30])  # of the 30 nodes' shares, three joined
    messages = list(ask(strategy, 2))
    replies = [answer(m, Join(w, {keys.LOSS: 1.0})) for m, (w, _) in zip(messages[:2], joins, strict=False)]
    arrays, _ = strategy.aggregate_train(2, replies)
    assert values_of(arrays) == pytest.approx([2, 2])
    assert [strategy.mixture[str(node)] for node in (10, 11, 12)] == pytest.approx([0, 0, 3 / 30])


def test_a_round_of_mixed_replies() -> None:
    # all have the same share at first: 1 + mean of (1, -1) and (-1, 3)
    joins = [Join(model(2, 0), {keys.LOSS: 1.0}), Join(model(0, 4), {keys.LOSS: 2.0})]
    check_mixed(AFL(), joins, [1.0, 2.0], [{keys.LOSS: -1e-9}, {keys.LOSS: -math.inf}])


def test_what_clients_report_and_what_is_not_allowed() -> None:
    assert AFL().report(Measured(Evaluation(0.75, 0.5), rho=1.0, met=True)) == {keys.LOSS: 0.75}
    with pytest.raises(ConfigError, match=r"^afl\.mixture-rate = 0\.0 is not allowed: input should be greater than"):
        AFL(mixture_rate=0.0)
