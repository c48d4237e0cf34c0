"""q-FFL's server against Algorithm 2 written out, against Flower's own, and at losses that overflow."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord
from flwr.serverapp.strategy import QFedAvg as FlowersQFedAvg
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedappeal.core.requirement import Evaluation, Measured
from fedappeal.protocol import keys
from fedappeal.settings.config import ConfigError, RunConfig
from server.build import check_settings
from strategies import FedAvg, QFedAvg, Strategy
from strategies.qfedavg import log_terms
from strategies.rounds.round import log
from strategies.rounds.sums.influence import squared_distance
from tests.grid import MemoryGrid, Volunteer, model, values_of
from tests.strategies.rounds.mixed_round import Join, answer, check_mixed

Floats = NDArray[np.float64]


def record(values: Floats) -> ArrayRecord:
    return ArrayRecord({"w": Array(values)})


def folded(
    strategy: Strategy, start: ArrayRecord, models: Sequence[ArrayRecord], losses: Sequence[float]
) -> ArrayRecord:
    """One round through Flower's own methods."""
    grid = MemoryGrid({10 + k: Volunteer(str(k)) for k in range(len(models))})
    messages = sorted(strategy.configure_train(1, start, ConfigRecord(), grid), key=lambda m: m.metadata.dst_node_id)
    grid.push_messages(messages)
    joins = zip(messages, models, losses, strict=True)
    arrays, _ = strategy.aggregate_train(1, [answer(m, Join(w, {keys.LOSS: f})) for m, w, f in joins])
    assert arrays is not None
    return arrays


def algorithm_2(w: Floats, local: Floats, losses: Sequence[float], q: float, lipschitz: float) -> Floats:
    """As printed, client by client, without a thought for overflow."""
    deltas, hs = np.zeros_like(w), 0.0
    for w_k, loss in zip(local, losses, strict=True):
        gradient = lipschitz * (w - w_k)
        deltas += loss**q * gradient
        hs += q * loss ** (q - 1) * (gradient @ gradient) + lipschitz * loss**q
    return w - deltas / hs


def test_a_step_by_hand() -> None:
    # q = 2, L = 2: F = 1: dw = 2 (1 - 3) = -4, Delta = -4, h = 2 * 1 * 16 + 2 = 34
    #               F = 3: dw = 2 (1 - 0) = 2, Delta = 9 * 2 = 18, h = 2 * 3 * 4 + 2 * 9 = 42; 1 - 14 / 76
    got = folded(QFedAvg(q=2, learning_rate=0.5), model(1), [model(3), model(0)], [1.0, 3.0])
    assert values_of(got) == pytest.approx([1 - 14 / 76], rel=1e-6)


@given(
    st.lists(st.floats(1e-3, 50.0), min_size=1, max_size=6),
    st.sampled_from([0.0, 0.1, 0.5, 1.0, 2.0, 5.0]),
    st.floats(1e-3, 2.0),
    st.integers(0, 2**32 - 1),
)
def test_the_step_is_algorithm_2(losses: list[float], q: float, learning_rate: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    w, local = rng.normal(size=7), rng.normal(size=(len(losses), 7))
    got = folded(QFedAvg(q=q, learning_rate=learning_rate), record(w), [record(m) for m in local], losses)
    expected = algorithm_2(w, local, losses, q, 1 / learning_rate)
    np.testing.assert_allclose(got["w"].numpy(), expected, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("q", [0.0, 0.5, 1.0, 3.0])
def test_flowers_own_agrees_where_it_is_right(q: float) -> None:
    """It adds 1e-10 to every loss: it is right where losses are far above that, and for a model in float64."""
    losses = [0.1, 2.0, 20.0]
    rng = np.random.default_rng(1)
    w, local = rng.normal(size=9), rng.normal(size=(len(losses), 9))
    ours = folded(QFedAvg(q=q, learning_rate=0.1), record(w), [record(m) for m in local], losses)
    theirs = FlowersQFedAvg(
        client_learning_rate=0.1, q=q, train_loss_key=keys.LOSS, weighted_by_key=keys.NUM_EXAMPLES
    )
    theirs.current_arrays = record(w)
    grid = MemoryGrid({10 + k: Volunteer(str(k)) for k in range(len(losses))})
    messages = list(FedAvg().configure_train(1, record(w), ConfigRecord(), grid))
    grid.push_messages(messages)
    joins = zip(messages, local, losses, strict=True)
    arrays, _ = theirs.aggregate_train(1, [answer(m, Join(record(k), {keys.LOSS: f})) for m, k, f in joins])
    assert arrays is not None
    np.testing.assert_allclose(ours["w"].numpy(), arrays["w"].numpy(), rtol=1e-7)


def test_q_zero_is_the_plain_average_to_the_bit() -> None:
    models = [model(0.1 * k, 1 / (k + 3)) for k in range(7)]
    losses = [0.0, 1e-300, 0.5, 1.0, 7.0, 1e300, 3.0]
    one = folded(QFedAvg(q=0, learning_rate=0.3), model(5, 5), models, losses)
    assert one == folded(FedAvg(), model(5, 5), models, losses)  # every client holds one example


def test_a_larger_q_favours_the_client_with_the_larger_loss() -> None:
    # One step along (w - w_k): the direction is sum F_k^q (w_k - w), so from 0 to (1, 0) and (0, 1) as F_1^q : F_2^q.
    for q in (0, 1, 2, 5):
        x, y = values_of(folded(QFedAvg(q=q, learning_rate=1), model(0, 0), [model(1, 0), model(0, 1)], [2.0, 1.0]))
        assert x / y == pytest.approx(2**q, rel=1e-5)


def test_a_round_of_mixed_replies() -> None:
    w, local, losses = np.ones(2), np.array([[2.0, 0.0], [0.0, 4.0]]), [2.0, 0.5]
    joins = [Join(model(*m), {keys.LOSS: f}) for m, f in zip(local, losses, strict=True)]
    expected = algorithm_2(w, local, losses, 1.5, 10.0)
    check_mixed(QFedAvg(q=1.5, learning_rate=0.1), joins, expected.tolist(), [{keys.LOSS: -1e-9}, {keys.LOSS: -1.0}])


@pytest.mark.parametrize("q", [0.2, 1.0, 1.5, 5.0, 100.0])
@pytest.mark.parametrize("scale", [1e-300, 1e-30, 1e30, 1e300])
def test_the_direction_does_not_depend_on_the_scale_of_the_losses(q: float, scale: float) -> None:
    # F_k^q alone would be 0 or infinite in float32, and at q = 100 in float64. The losses 2 : 1 give 2^q : 1, and the
    # step's size is between nothing and the whole way.
    models = [model(1, 0), model(0, 1), model(0, 0)]
    x, y = values_of(folded(QFedAvg(q=q, learning_rate=1e9), model(0, 0), models, [2 * scale, scale, scale / 2]))
    assert math.isfinite(x)
    assert 0 <= y <= x <= 1
    if scale > 1:  # L |w - w_k|^2 is small beside F: the whole way to the weighted mean
        assert [x, y] == pytest.approx([2**q / (2**q + 1 + 2**-q), 1 / (2**q + 1 + 2**-q)], rel=1e-5, abs=1e-12)


@pytest.mark.parametrize("backwards", [False, True])
def test_one_loss_that_dwarfs_the_others_takes_the_whole_weight(backwards: bool) -> None:
    models, losses = [model(1), model(5), model(1)], [1.0, 1e200, 1e-200]
    if backwards:
        models, losses = models[::-1], losses[::-1]
    got = folded(QFedAvg(q=3, learning_rate=0.1), model(2), models, losses)
    assert values_of(got) == pytest.approx([5.0], rel=1e-6)  # h = L F^q (1 + q L |dw|^2 / F), with F huge


@pytest.mark.parametrize("losses", [[5e-324, 1.7e308], [1.7e308, 1.7e308], [5e-324, 5e-324], [1.0, 0.0], [1.0, 2.0]])
def test_the_largest_q_makes_no_nan(losses: list[float]) -> None:
    # The largest loss alone counts, two that tie count alike, and the step is at most the whole way.
    x, y = values_of(folded(QFedAvg(q=1e6, learning_rate=0.1), model(0, 0), [model(1, 0), model(0, 1)], losses))
    assert 0 <= min(x, y) <= max(x, y) <= 1
    assert x == y if losses[0] == losses[1] else min(x, y) == 0
    assert (max(x, y) > 0.4) == (max(losses) > 1e300)  # else b_k, with q / F, dwarfs a_k


@pytest.mark.parametrize("q", [0.3, 1.0, 2.0])
def test_losses_of_zero(q: float) -> None:
    strategy = QFedAvg(q=q, learning_rate=0.5)
    assert values_of(folded(strategy, model(3, 4), [model(9, 9), model(0, 0)], [0.0, 0.0])) == [3, 4]
    alone = folded(strategy, model(3, 4), [model(5, 5)], [1.5])
    for models, losses in (([model(9, 9), model(5, 5)], [0.0, 1.5]), ([model(5, 5), model(9, 9)], [1.5, 0.0])):
        assert folded(strategy, model(3, 4), models, losses) == alone  # no weight, and no say in the step size


@pytest.mark.parametrize("q", [0.0, 0.5, 1.0, 4.0])
def test_a_client_that_did_not_move_and_huge_models_make_no_nan(q: float) -> None:
    strategy = QFedAvg(q=q, learning_rate=0.5)
    assert values_of(folded(strategy, model(3, 4), [model(3, 4)], [2.0])) == pytest.approx([3, 4])
    huge = folded(strategy, record(np.array([1.0])), [record(np.array([1e300])), record(np.array([2.0]))], [1.0, 1.0])
    assert np.isfinite(huge["w"].numpy()).all()


def test_the_terms_of_a_client() -> None:
    a, b = log_terms(2.0, 3.0, 2.0, 0.5)  # a = 2^2; b = q L F^(q-1) |dw|^2 = 2 * 2 * 2 * 3
    assert (math.exp(a), math.exp(b)) == pytest.approx((4.0, 24.0))
    assert log_terms(0.0, 3.0, 0.0, 0.5) == (0.0, -math.inf)  # 0^0 = 1
    assert log_terms(0.0, 3.0, 0.5, 0.5) == (-math.inf, -math.inf)
    assert log_terms(1.0, 0.0, 1.0, 1.0) == (0.0, -math.inf)


@given(st.integers(0, 2**32 - 1), st.integers(1, 100_000))
def test_the_squared_distance_is_summed_in_float64(seed: int, size: int) -> None:
    rng = np.random.default_rng(seed)
    one, other = (rng.normal(1000, 1, size).astype(np.float32) for _ in range(2))
    counters = [Array(np.array([n], np.int64)) for n in (1, 10**9)]
    records = [ArrayRecord({"w": Array(w), "n": n}) for w, n in zip((one, other), counters, strict=True)]
    exact = math.fsum((float(a) - float(b)) ** 2 for a, b in zip(one, other, strict=True))
    assert squared_distance(*records) == pytest.approx(exact, rel=1e-12)


def test_what_clients_are_asked_and_what_is_not_allowed() -> None:
    grid = MemoryGrid({10: Volunteer("a")})
    (message,) = QFedAvg(q=1, learning_rate=0.1).configure_train(1, model(1), ConfigRecord(), grid)
    assert message.content.config_records[keys.CONFIG][keys.STRATEGY] == "qfedavg"
    measured = Measured(Evaluation(0.75, 0.5), rho=1.0, met=True)
    assert QFedAvg(q=1, learning_rate=0.1).report(measured) == {keys.LOSS: 0.75}
    with pytest.raises(
        ConfigError, match=r"^qfedavg\.q = -0\.5 is not allowed: input should be greater than or equal"
    ):
        QFedAvg(q=-0.5, learning_rate=0.1)
    for q in (1.1e6, 1e308, math.inf, math.nan):
        with pytest.raises(ConfigError) as error:
            QFedAvg(q=q, learning_rate=0.1)
        line = f"qfedavg.q = {q} is not allowed: input should be less than or equal to 1000000"
        assert str(error.value) == line
    with pytest.raises(ConfigError, match=r"^qfedavg\.learning-rate = 0\.0 is not allowed: input should be greater"):
        QFedAvg(q=1, learning_rate=0.0)
    with pytest.raises(ConfigError, match=r"^qfedavg\.learning-rate is missing: the clients' learning rate, 1 / L$"):
        QFedAvg(q=1)
    with pytest.raises(ConfigError, match="report-loss = False is not allowed with strategy = 'qfedavg'"):
        check_settings(RunConfig(strategy="qfedavg", report_loss=False))


def test_the_logarithm_of_what_counts() -> None:
    assert log(0.0) == -math.inf, "nothing of it"
    assert log(0.5) == pytest.approx(-0.6931471805599453)


def test_a_counter_between_the_arrays_is_no_distance() -> None:
    one, other = (
        ArrayRecord(
            {"a": Array(np.full(2, x)), "count": Array(np.array([int(9 * x)])), "z": Array(np.full(3, 2 * x))}
        )
        for x in (1.0, 2.0)
    )
    assert squared_distance(one, other) == 2 * 1.0 + 3 * 4.0
    assert squared_distance(other, None) == 2 * 4.0 + 3 * 16.0
