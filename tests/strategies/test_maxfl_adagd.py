"""ADA-GD under MaxFL's weights: by hand, against ADA-GD on what clients keep to themselves, and through messages."""

import math

import numpy as np
import pytest
from flwr.app import ConfigRecord, Message
from hypothesis import assume, given
from hypothesis import strategies as st
from numpy.typing import ArrayLike, NDArray

from fedappeal.core.requirement import Evaluation, Measured
from fedappeal.protocol import keys
from fedappeal.settings.config import ConfigError
from strategies import MaxFLAdaGD, adagd
from strategies.adagd.algorithm import AdaGDStep, Gathered, one_step
from strategies.adagd.strategy import CASE_3
from strategies.maxfl_adagd import LEAST_FACTOR, appeal_factor
from strategies.rounds.strategy import rounds_of
from tests.grid import MemoryGrid, model, values_of
from tests.strategies.adagd.agents import constant, reply

Matrix = NDArray[np.float64]


def step(gradients: ArrayLike, margins: ArrayLike, step_size: float) -> AdaGDStep:
    return one_step(Gathered(step_size, threshold=0.0), gradients, margins)


def test_case_one_by_hand() -> None:
    # eta = 0.1, eps = 1, line 4 at 2. Agent 0, a = 1/2: 2.4 - 0.1 * 5 = 1.9 <= 2, sent as 0.5 * 0.4 - 0.1 * 2.5 <= 0.
    # 1 and 2 stay, with a = 1/4 and 1: their sum is (0, 0.25, 2); (3, 4, 0) / 5 takes 0.2 * (0.6, 0.8, 0) away.
    found = step([[1.5, 2, 0], [0, 0.25, 0], [0, 0, 2]], [0.5 * 0.4, 0.25 * 7, 7], step_size=0.1)
    assert found.case == 1
    assert found.leaving.tolist() == [True, False, False]
    expected = np.array([0.12, -0.09, -2]) / math.sqrt(0.12**2 + 0.09**2 + 4)
    assert found.direction == pytest.approx(expected, rel=1e-12)


def test_case_two_is_the_mean_of_what_is_sent_over_all_agents() -> None:
    found = step([[0.3, 0.0], [0.0, 0.15], [0.03, 0.03]], [7.0, 3.5, 0.7], step_size=0.1)
    assert (found.case, found.stalled) == (2, False)
    assert found.direction == pytest.approx([-0.11, -0.06])


def test_case_three_and_the_border() -> None:
    # 3 - 0.25 * 4 = 2 = 2 eps, with a = 1/8, all exact in binary: at the border an agent is predicted to leave.
    assert step([[0.5]], [0.125], step_size=0.25).case == 3
    assert step([[0.5]], [math.nextafter(0.125, 1)], step_size=0.25).case == 2
    assert step([[1.0, 0.0], [5.0, 0.0]], [0.0, 9.0], step_size=0.1).stalled


@st.composite
def rounds(draw: st.DrawFn) -> tuple[Matrix, Matrix, float, float, float]:
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    agents, size = draw(st.integers(1, 7)), draw(st.integers(1, 30))
    gradients = rng.normal(size=(agents, size)) * rng.choice([0.01, 1.0, 30.0], size=(agents, 1))
    losses, step_size, precision = (
        rng.uniform(0, 6, agents),
        float(rng.uniform(0.001, 0.1)),
        float(rng.uniform(0.1, 2)),
    )
    slack = float(rng.choice([1.0, 2.0, 3.0]))
    gaps = losses - step_size * np.linalg.norm(gradients, axis=1) - slack * precision
    assume(np.abs(gaps).min() > 1e-9)  # nearer to the border than rounding, either answer is right
    return gradients, losses, step_size, precision, slack


@given(rounds(), st.data())
def test_whatever_the_factors_those_are_predicted_to_leave_whom_adagd_predicts(
    drawn: tuple[Matrix, Matrix, float, float, float], data: st.DataObject
) -> None:
    gradients, losses, step_size, precision, slack = drawn
    plain = adagd.step(gradients, losses, step_size, precision, slack)
    some = st.lists(st.floats(LEAST_FACTOR, 1), min_size=len(losses), max_size=len(losses))
    factors = np.array(data.draw(some))
    found = step(factors[:, None] * gradients, factors * (losses - slack * precision), step_size)
    assert found.leaving.tolist() == plain.leaving.tolist()
    assert found.case == plain.case
    if found.direction is None:
        return
    # The step is ADA-GD's of the weighted gradients, and as orthogonal to those of D as to the unweighted ones.
    stay = ~plain.leaving
    v = (factors[stay, None] * gradients[stay]).sum(axis=0) / (1 if plain.leaving.any() else len(losses))
    inside = gradients[plain.leaving] / np.linalg.norm(gradients[plain.leaving], axis=1, keepdims=True)
    if len(inside):
        v = v - inside.T @ np.linalg.lstsq(inside.T, v, rcond=None)[0]
    np.testing.assert_allclose(found.direction, -v / max(np.linalg.norm(v), 1.0), atol=1e-10)
    for row in gradients[plain.leaving]:
        assert abs(found.direction @ row) <= 1e-6 * np.linalg.norm(row) * np.linalg.norm(found.direction)


@given(rounds())
def test_with_all_factors_one_it_is_adagd(drawn: tuple[Matrix, Matrix, float, float, float]) -> None:
    gradients, losses, step_size, precision, slack = drawn
    plain = adagd.step(gradients, losses, step_size, precision, slack)
    found = step(gradients, losses - slack * precision, step_size)
    assert (found.case, found.stalled) == (plain.case, plain.stalled)
    assert found.leaving.tolist() == plain.leaving.tolist()
    if plain.direction is None:
        assert found.direction is None
    else:
        np.testing.assert_array_equal(found.direction, plain.direction)


def test_the_factor_is_maxfls_weight_over_its_largest_and_never_zero() -> None:
    assert appeal_factor(0.7, 0.7) == 1.0
    assert appeal_factor(0.7 + math.log(3), 0.7) == pytest.approx(0.75)  # s = 3/4: 4 * 3/4 * 1/4
    assert appeal_factor(0.7, 0.7 + math.log(3)) == pytest.approx(0.75)
    assert appeal_factor(10.0, 0.0) == pytest.approx(4 * math.exp(-10) / (1 + math.exp(-10)) ** 2)
    assert appeal_factor(29.0, 0.0) > LEAST_FACTOR
    for gap in (30.0, 200.0, 1e4, 1e300):  # float32 has nothing below e^-103, float64 nothing below e^-745
        assert appeal_factor(gap, 0.0) == appeal_factor(0.0, gap) == LEAST_FACTOR > 0


def test_a_hopeless_client_is_neither_taken_for_leaving_nor_left_unprotected() -> None:
    # Losses are a thousand above rho_k: exp(-1000) is 0. In float32, as it is sent.
    factor = appeal_factor(1000.0, 0.0)
    sent = (factor * np.array([[0.0, 1e-3], [1e-3, 1e-3]])).astype(np.float32)
    found = step(sent, [factor * 7.0, -factor * 0.5], step_size=0.1)
    assert found.leaving.tolist() == [False, True]
    assert found.direction is not None
    assert found.direction == pytest.approx(factor * np.array([0.5e-3, -0.5e-3]), rel=1e-6)
    assert not found.stalled


@pytest.mark.parametrize(("gradients", "margins"), [([[np.nan]], [1.0]), ([[1.0]], [np.inf]), ([1.0], [1.0])])
def test_what_step_refuses(gradients: list[list[float]], margins: list[float]) -> None:
    with pytest.raises(ValueError, match=r"not finite|shape"):
        step(gradients, margins, step_size=0.1)


@pytest.mark.parametrize("step_size", [0.0, -5.0, np.inf, np.nan])
def test_a_step_size_that_is_not_positive_is_refused(step_size: float) -> None:
    with pytest.raises(ConfigError, match=r"^maxfl-adagd.step-size = .* is not allowed: input should be "):
        MaxFLAdaGD(step_size=step_size)


# -- through Flower's messages ---------------------------------------------------------------------------


def asked_of(strategy: MaxFLAdaGD, agents: int) -> list[Message]:
    grid = MemoryGrid({10 + k: constant(str(k), 9.0, 0.0) for k in range(agents)})
    messages = list(strategy.configure_train(1, model(1, 1, 1), ConfigRecord(), grid))
    grid.push_messages(messages)
    return sorted(messages, key=lambda m: m.metadata.dst_node_id)


def test_a_round_is_one_step_and_says_nothing_of_losses() -> None:
    strategy = MaxFLAdaGD(step_size=0.1, precision=0.5, slack=3.0)
    first, second, third = asked_of(strategy, 3)
    told = first.content.config_records[keys.CONFIG]
    assert (told[keys.STRATEGY], told[keys.LOCAL_RULE]) == ("maxfl-adagd", "weighted-gradient")
    assert (told["maxfl-adagd.precision"], told["maxfl-adagd.slack"]) == (0.5, 3.0)
    measured = Measured(Evaluation(2.25, 0.5), rho=2.25 + math.log(3), met=True)  # s = 1/4: the factor is 3/4
    assert strategy.report(measured) == {"margin": pytest.approx(0.75 * (2.25 - 1.5))}
    replies = [
        reply(first, model(1.5, 2, 0), decision=1, margin=0.2),
        reply(second, model(0, 0.25, 0), decision=1, margin=1.75),
        reply(third, model(0, 0, 2), decision=1, margin=7),
    ]
    arrays, metrics = strategy.aggregate_train(1, replies)
    assert metrics is not None
    assert (metrics["case"], metrics["leaving"], metrics["missing"]) == (1, 1, 0)
    assert metrics["direction_norm"] == pytest.approx(1.0)
    assert not [name for name in metrics if "loss" in name]
    step = 0.1 * np.array([0.12, -0.09, -2]) / math.sqrt(0.12**2 + 0.09**2 + 4)
    assert values_of(arrays) == pytest.approx((1 + step).tolist(), rel=1e-6)


def test_claims_are_checked_and_a_missing_reply_is_waited_for() -> None:
    strategy = MaxFLAdaGD(step_size=0.1, precision=0.5)
    bad = [{"loss": 9.0}, {"margin": math.nan}, {"margin": math.inf}]
    messages = asked_of(strategy, 4)
    replies = [reply(m, model(1, 1, 1), decision=1, **told) for m, told in zip(messages, bad, strict=False)]
    arrays, metrics = strategy.aggregate_train(
        1, [*replies, reply(messages[3], model(1, 1, 1), decision=1, margin=9)]
    )
    assert arrays is None
    assert metrics is not None
    assert (metrics["failed"], metrics["missing"], metrics["joined"]) == (3, 3, 1)
    assert list(rounds_of(strategy).record.failures.values()) == [
        "reply has no 'margin'",
        "margin = nan is not a finite number",
        "margin = inf is not a finite number",
    ]


def test_the_run_ends_in_case_three() -> None:
    strategy = MaxFLAdaGD(step_size=0.1, precision=0.5)
    replies = [reply(m, model(0, 0, 1), decision=1, margin=-0.25) for m in asked_of(strategy, 2)]
    arrays, _ = strategy.aggregate_train(1, replies)
    assert arrays is None
    assert rounds_of(strategy).finished == CASE_3


def test_it_refuses_what_adagd_refuses_under_its_own_name() -> None:
    with pytest.raises(ConfigError, match="clients-per-round = 3 is not allowed with strategy = 'maxfl-adagd'"):
        MaxFLAdaGD(step_size=0.1, precision=1.0, clients_per_round=3)
    with pytest.raises(ConfigError, match=r"BatchNorm is not allowed with strategy = 'maxfl-adagd': bn1 "):
        MaxFLAdaGD(step_size=0.1, precision=1.0).check_model(["bn1.running_mean"])


@given(st.integers(0, 2**32 - 1))
def test_nobody_with_a_convex_loss_leaves_whatever_the_factors_and_the_step_size(seed: int) -> None:
    # F_k = |A_k w - b_k|^2 / 2 lies above its tangents: a step of length eta at most takes no more than eta |g_k| off
    # it, and one that is orthogonal to g_k takes nothing off it.
    rng = np.random.default_rng(seed)
    agents, size = int(rng.integers(1, 6)), 8
    matrices, targets = rng.normal(size=(agents, 3, size)), rng.normal(size=(agents, 3)) * 4
    w, precision, step_size = np.zeros(size), 0.1, float(rng.choice([0.01, 0.3, 2.0]))
    for number in range(60):
        rests = np.einsum("kij,j->ki", matrices, w) - targets
        losses, gradients = (rests**2).sum(axis=1) / 2, np.einsum("kij,ki->kj", matrices, rests)
        assume(losses.min() > precision or number > 0)
        assert losses.min() > precision * (1 - 1e-6)
        factors = 10.0 ** rng.uniform(-6, 0, agents)
        found = step(factors[:, None] * gradients, factors * (losses - precision), step_size)
        if found.direction is None or found.stalled:
            break
        w = w + step_size * found.direction
