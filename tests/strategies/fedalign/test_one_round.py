"""One round of FedALIGN through Flower's own four methods, with nodes of which nothing is known: Algorithm 1."""

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from hypothesis import given
from hypothesis import strategies as st

from fedappeal.protocol import keys
from fedappeal.settings.config import ConfigError
from strategies import FedAvg, Strategy
from strategies.fedalign import FedALIGN
from strategies.fedalign.alignment import priority_loss
from strategies.rounds.strategy import rounds_of
from tests.grid import MemoryGrid, Volunteer, model, values_of
from tests.strategies.fedalign.aligned import GLOBAL_LOSS, MATCH_ON, PRIORITY

eighths = st.integers(-800, 800).map(lambda n: n / 8)


class Said(NamedTuple):
    """One joined reply."""

    model: Sequence[float]
    examples: int
    loss: float
    priority: bool


def reply(message: Message, arrays: ArrayRecord | None = None, **metrics: float) -> Message:
    told: dict[str, Any] = {keys.NUM_EXAMPLES: 1} | {k.replace("_", "-"): v for k, v in metrics.items()}
    records: dict[str, Any] = {} if arrays is None else {keys.ARRAYS: arrays}
    return Message(RecordDict({keys.METRICS: MetricRecord(told), **records}), reply_to=message)


def joined(message: Message, said: Said) -> Message:
    told = {"num_examples": said.examples, "loss": said.loss, "priority": float(said.priority)}
    return reply(message, model(*said.model), decision=1, **told)


def asked(strategy: Strategy, count: int, server_round: int = 1, start: ArrayRecord | None = None) -> list[Message]:
    """Open a round with a number of bare nodes and return its messages, by node."""
    grid = MemoryGrid({10 + k: Volunteer(str(k)) for k in range(count)})
    messages = list(strategy.configure_train(server_round, start or model(1, 1), ConfigRecord(), grid))
    grid.push_messages(messages)
    return sorted(messages, key=lambda m: m.metadata.dst_node_id)


def one_round(strategy: Strategy, said: Sequence[Said], server_round: int = 1) -> ArrayRecord | None:
    messages = asked(strategy, len(said), server_round)
    arrays, _ = strategy.aggregate_train(server_round, [joined(m, s) for m, s in zip(messages, said, strict=True)])
    return arrays


def literal(said: Sequence[Said], epsilon: float, most: float = math.inf) -> list[float]:
    """Algorithm 1, line by line, in float64; everybody joins."""
    p = {k: s.examples / sum(s.examples for s in said if s.priority) for k, s in enumerate(said)}
    f = sum(p[k] * s.loss for k, s in enumerate(said) if s.priority)
    w, total = np.zeros(len(said[0].model)), 1.0
    for k, s in enumerate(said):
        if s.priority:
            w += p[k] * np.array(s.model)
        elif abs(f - s.loss) <= epsilon:
            w += min(p[k], most) * np.array(s.model)
            total += min(p[k], most)
    return [float(v) for v in w / total]


HAND = [
    Said((1, 0), 1, 1.0, True),
    Said((5, 4), 3, 2.0, True),
    Said((0, 8), 6, 1.5, False),
    Said((9, 9), 50, 2.5, False),
    Said((9, 9), 50, 0.5, False),
]


def test_a_round_by_hand() -> None:
    # F = (1 + 3 * 2) / 4 = 1.75; the third client's loss is 0.25 away, the others' 0.75 (above) and 1.25 (below).
    # p = 1/4, 3/4, 6/4: ((1, 0) / 4 + 3 (5, 4) / 4 + 6 (0, 8) / 4) / (1 + 6/4) = (4, 15) / 2.5
    strategy = FedALIGN(epsilon=0.25, warmup_share=0)
    assert values_of(one_round(strategy, HAND)) == pytest.approx([1.6, 6.0], rel=1e-6)
    assert rounds_of(strategy).record.metrics == pytest.approx(
        {
            "priority_joined": 2,
            "accepted": 1,
            "silent": 0,
            "refused": 2,
            "epsilon": 0.25,
            "global_loss": 1.75,
            "theta": 0.4,  # 1 / (1 + 6/4)
            "rho": 0.6,
            "theta_mean": 0.4,
            "rho_mean": 0.6,
        }
    )
    became = [rounds_of(strategy).record.decisions[str(node)] for node in range(10, 15)]
    assert became == ["joined", "joined", "joined", "refused", "refused"]
    assert rounds_of(strategy).record.failures == {}


@pytest.mark.parametrize(
    ("most", "expected"),
    [
        (0.5, [16 / 6, 7 / 1.5]),  # ((1, 0) / 4 + 3 (5, 4) / 4 + (0, 8) / 2) / 1.5 = (4, 7) / 1.5
        (1.5, [1.6, 6.0]),
        (9.0, [1.6, 6.0]),
    ],
)
def test_a_limit_of_the_weights_by_hand(most: float, expected: list[float]) -> None:
    strategy = FedALIGN(epsilon=0.25, warmup_share=0, max_non_priority_weight=most)
    assert values_of(one_round(strategy, HAND)) == pytest.approx(expected, rel=1e-6)
    assert rounds_of(strategy).record.metrics["theta"] == pytest.approx(1 / (1 + min(most, 1.5)))


claims = st.lists(
    st.builds(Said, st.tuples(eighths, eighths), st.integers(1, 50), eighths, st.booleans()), min_size=1, max_size=7
)


@given(claims, st.integers(0, 400).map(lambda n: n / 16), st.sampled_from([None, 0.25, 2.0]), st.randoms())
def test_a_round_is_algorithm_one_in_any_order(
    said: list[Said], epsilon: float, most: float | None, rng: Any
) -> None:
    strategy = FedALIGN(epsilon=epsilon, warmup_share=0, max_non_priority_weight=most)
    order = list(said)
    rng.shuffle(order)
    arrays = one_round(strategy, order)
    if not any(s.priority for s in said):
        assert arrays is None
        assert rounds_of(strategy).record.count("refused") == len(said)
        return
    # A loss can be just as far from F as epsilon: there the last bit of F decides, so look where it does not.
    f = priority_loss([s.loss for s in said if s.priority], [s.examples for s in said if s.priority])
    if all(abs(abs(s.loss - f) - epsilon) > 1e-9 for s in said):
        expected = literal(said, epsilon, math.inf if most is None else most)
        assert values_of(arrays) == pytest.approx(expected, rel=1e-5, abs=1e-4)


@given(claims.filter(lambda said: any(s.priority for s in said)))
def test_epsilon_without_bound_is_fedavg_over_all_and_below_zero_over_the_priority_clients(said: list[Said]) -> None:
    everybody = one_round(FedALIGN(epsilon=math.inf, warmup_share=0), said)
    assert values_of(everybody) == pytest.approx(values_of(one_round(FedAvg(), said)), rel=1e-5, abs=1e-4)
    alone = one_round(FedALIGN(epsilon=-1e-9, warmup_share=0), said)
    assert values_of(alone) == values_of(one_round(FedAvg(), [s for s in said if s.priority]))


def test_without_a_priority_client_the_model_stays() -> None:
    strategy = FedALIGN(epsilon=math.inf, warmup_share=0)
    assert one_round(strategy, HAND[2:]) is None
    assert rounds_of(strategy).record.metrics == {
        "priority_joined": 0, "accepted": 0, "silent": 0, "refused": 3, "epsilon": math.inf
    }  # fmt: skip


def test_where_f_was_told_that_f_decides_and_nothing_is_held() -> None:
    strategy = FedALIGN(epsilon=0.25, warmup_share=0, global_loss="stale")
    one_round(strategy, HAND)  # F = 1.75
    later = [s._replace(loss=s.loss + 9) if s.priority else s for s in HAND]
    (first, *_) = messages = asked(strategy, len(later), server_round=2)
    assert first.content.config_records[keys.CONFIG][GLOBAL_LOSS] == 1.75
    arrays, metrics = strategy.aggregate_train(2, [joined(m, s) for m, s in zip(messages, later, strict=True)])
    assert values_of(arrays) == pytest.approx([1.6, 6.0], rel=1e-6)
    assert metrics is not None
    assert (metrics["global_loss"], metrics["accepted"], metrics["refused"]) == (1.75, 1, 2)
    assert asked(strategy, 1, server_round=3)[0].content.config_records[keys.CONFIG][GLOBAL_LOSS] == 10.75


@pytest.mark.parametrize(("most", "expected"), [(0.5, [4 / 1.5, 7 / 1.5]), (2.0, [1.6, 6.0])])
def test_a_limit_where_no_roll_call_says_how_much_data_there_is(most: float, expected: list[float]) -> None:
    # As above, and the loss that was told decides, although the models have to be held until the end.
    strategy = FedALIGN(
        epsilon=0.25, warmup_share=0, global_loss="stale", max_non_priority_weight=most, priority_ids=["10", "11"]
    )
    one_round(strategy, HAND)
    later = [s._replace(loss=s.loss + 9) if s.priority else s for s in HAND]
    assert values_of(one_round(strategy, later, server_round=2)) == pytest.approx(expected, rel=1e-6)


def test_only_non_priority_clients_are_silent() -> None:
    strategy = FedALIGN(warmup_share=0, priority_ids=["10"])
    _, metrics = strategy.aggregate_train(1, [reply(m, decision=0) for m in asked(strategy, 3)])
    assert metrics is not None
    assert (metrics["sat-out"], metrics["silent"]) == (3, 2)


BAD: list[Callable[[Message], Message]] = [
    lambda m: Message(Error(2, "out of memory"), reply_to=m),
    lambda m: Message(RecordDict(), reply_to=m),
    lambda m: reply(m, decision=1, loss=1, priority=1),
    lambda m: reply(m, model(7, 7), decision=1, priority=1),
    lambda m: reply(m, model(7, 7), decision=1, loss=1),
    lambda m: reply(m, model(7, 7), decision=1, loss=float("nan"), priority=1),
    lambda m: reply(m, model(7, 7), decision=1, loss=1, priority=2),
    lambda m: reply(m, model(7, 7), decision=1, loss=1, priority=1, num_examples=0),
    lambda m: reply(m, model(7, 7), decision=3, loss=1, priority=1),
]
BAD_MODELS = [
    model(np.nan, 7),
    model(7, np.inf),
    model(7, 7, 7),
    ArrayRecord({"v": Array(np.zeros(2, np.float32))}),
    ArrayRecord({"w": Array(np.zeros(2))}),
]


def mixed(messages: list[Message]) -> list[Message]:
    m = iter(messages)
    replies = [joined(next(m), said) for said in HAND]
    replies += [reply(next(m), decision=0), reply(next(m), decision=-1)]
    replies += [bad(next(m)) for bad in BAD]
    for arrays, priority in itertools.product(BAD_MODELS, (0, 1)):
        replies.append(reply(next(m), arrays, decision=1, loss=1.5, priority=priority))
    return replies


@pytest.mark.parametrize("seed", [None, 0, 1, 2])
@pytest.mark.parametrize("told", [False, True])
def test_only_the_good_joins_move_the_model(told: bool, seed: int | None) -> None:
    strategy = FedALIGN(epsilon=0.25, warmup_share=0, global_loss="stale", mandatory_rounds=0)
    if told:
        one_round(strategy, HAND)
    replies = mixed(asked(strategy, 40, server_round=2))
    if seed is not None:
        replies = [replies[i] for i in np.random.default_rng(seed).permutation(len(replies))]
    arrays, metrics = strategy.aggregate_train(2, replies)
    assert values_of(arrays) == pytest.approx([1.6, 6.0], rel=1e-6)
    assert metrics is not None
    names = ("joined", "priority_joined", "accepted", "refused", "silent", "sat-out", "left", "failed", "surplus")
    bad = len(BAD) + 2 * len(BAD_MODELS)
    assert [metrics[name] for name in names] == [3, 2, 1, 2, 1, 1, 1, bad, 0]
    assert all("\n" not in reason for reason in rounds_of(strategy).record.failures.values())


def test_an_empty_round_leaves_the_model() -> None:
    strategy = FedALIGN(warmup_share=0)
    asked(strategy, 0)
    assert strategy.aggregate_train(1, [])[0] is None


def test_an_error_is_a_share() -> None:
    strategy = FedALIGN(epsilon=0.25, warmup_share=0, match_on="error")
    messages = asked(strategy, 3)
    assert messages[0].content.config_records[keys.CONFIG][MATCH_ON] == "error"
    good = [joined(m, Said((1, 3), 1, 0.5, True)) for m in messages[:1]]
    bad = [joined(m, Said((9, 9), 1, loss, True)) for m, loss in zip(messages[1:], (1.1, -0.1), strict=True)]
    assert values_of(strategy.aggregate_train(1, good + bad)[0]) == [1, 3]
    assert rounds_of(strategy).record.count("failed") == 2


def test_bare_nodes_warm_up_by_what_they_say_or_by_the_operators_list() -> None:
    strategy = FedALIGN(epsilon=math.inf, warmup_rounds=1)
    assert values_of(one_round(strategy, HAND)) == pytest.approx([4, 3])  # ((1, 0) + 3 (5, 4)) / 4
    assert rounds_of(strategy).record.metrics["refused"] == 3
    assert rounds_of(strategy).record.metrics["theta"] == 1
    listed = FedALIGN(epsilon=math.inf, warmup_rounds=1, priority_ids=["11", "12"])
    messages = asked(listed, 5)
    assert [m.metadata.dst_node_id for m in messages] == [11, 12]
    assert [m.content.config_records[keys.CONFIG][PRIORITY] for m in messages] == [1, 1]
    assert [m.content.config_records[keys.CONFIG][PRIORITY] for m in asked(listed, 5, 2)] == [0, 1, 1, 0, 0]
    listed.aggregate_train(2, [joined(m, s) for m, s in zip(asked(listed, 5, 2), HAND, strict=True)])
    assert rounds_of(listed).record.metrics["global_loss"] == pytest.approx(
        (3 * 2.0 + 6 * 1.5) / 9
    )  # their own word is not asked


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        (
            {"warmup_share": 1.5},
            "fedalign.warmup-share = 1.5 is not allowed: input should be less than or equal to 1",
        ),
        (
            {"warmup_share": -0.1},
            "fedalign.warmup-share = -0.1 is not allowed: input should be greater than or equal",
        ),
        ({"warmup_rounds": -1}, "fedalign.warmup-rounds = -1 is not allowed"),
        (
            {"match_on": "accuracy"},
            "fedalign.match-on = 'accuracy' is not allowed: input should be 'loss' or 'error'",
        ),
        ({"global_loss": "old"}, "fedalign.global-loss = 'old' is not allowed: input should be 'fresh' or 'stale'"),
        (
            {"max_non_priority_weight": -0.5},
            "fedalign.max-non-priority-weight = -0.5 is not allowed: input should be",
        ),
        ({}, "warmup-share = 0.1 is not allowed without start"),
        ({"warmup_share": 0, "epsilon": lambda t: math.nan}, "epsilon = nan in round 1 is not allowed"),
    ],
)
def test_a_setting_that_is_not_allowed_is_named(settings: dict[str, Any], line: str) -> None:
    with pytest.raises(ConfigError, match=line) as error:
        asked(FedALIGN(**settings), 1)
    assert "\n" not in str(error.value)
