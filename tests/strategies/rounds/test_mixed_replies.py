"""Flower's own four methods, with a grid that only knows node ids, and replies of every kind."""

from collections.abc import Iterable

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict

from fedappeal.protocol import keys
from fedappeal.settings.config import ConfigError
from strategies import FedAvg, MaxFL, Strategy
from strategies.rounds.strategy import rounds_of
from tests.grid import MemoryGrid, Volunteer, model, values_of

NODES = {node: Volunteer(str(node)) for node in range(10, 40)}


def reply(message: Message, arrays: ArrayRecord | None = None, **metrics: float) -> Message:
    told = {keys.NUM_EXAMPLES: 1.0} | {k.replace("_", "-"): v for k, v in metrics.items()}
    content = RecordDict({keys.METRICS: MetricRecord(told)})  # type: ignore[arg-type]
    if arrays is not None:
        content[keys.ARRAYS] = arrays
    return Message(content, reply_to=message)


def mixed(messages: Iterable[Message]) -> tuple[list[Message], int]:
    """Two good joins, one that sits out, one that leaves, and one reply for each thing that can be wrong."""
    m = iter(messages)
    good = [
        reply(next(m), model(2, 0), decision=1, num_examples=1, appeal_weight=0.25),
        reply(next(m), model(0, 4), decision=1, num_examples=3, appeal_weight=0.05),
        reply(next(m), decision=0),
        reply(next(m), decision=-1),
    ]
    bad = [
        Message(Error(2, "out of memory"), reply_to=next(m)),
        Message(RecordDict(), reply_to=next(m)),
        reply(next(m), decision=1, appeal_weight=0.1),
        reply(next(m), appeal_weight=0.1),  # without a decision it joins, so a model is missing
        reply(next(m), model(7, 7), decision=2, appeal_weight=0.1),
        reply(next(m), model(7, 7), decision=0.5, appeal_weight=0.1),
        reply(next(m), model(np.nan, 7), decision=1, appeal_weight=0.1),
        reply(next(m), model(7, np.inf), decision=1, appeal_weight=0.1),
        reply(next(m), model(7, 7, 7), decision=1, appeal_weight=0.1),
        reply(next(m), ArrayRecord({"v": Array(np.zeros(2, np.float32))}), decision=1, appeal_weight=0.1),
        reply(next(m), ArrayRecord({"w": Array(np.zeros(2))}), decision=1, appeal_weight=0.1),
        reply(next(m), model(7, 7), decision=1, num_examples=0, appeal_weight=0.1),
        reply(next(m), model(7, 7), decision=1, num_examples=1.5, appeal_weight=0.1),
        reply(next(m), model(7, 7), decision=1, num_examples=float("inf"), appeal_weight=0.1),
        reply(next(m), decision=0, num_examples=-3),
        reply(next(m), model(7, 7), decision=1, appeal_weight=0.1, loss=float("nan")),
    ]
    return good + bad, len(bad)


def asked(strategy: Strategy, server_round: int = 11) -> list[Message]:
    """Open a round and return its messages, with ids, as a grid would have sent them."""
    grid = MemoryGrid(dict(NODES))
    messages = list(strategy.configure_train(server_round, model(1, 1), ConfigRecord(), grid))
    grid.push_messages(messages)
    return messages


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        # (1 * (2, 0) + 3 * (0, 4)) / 4
        (FedAvg(), [0.5, 3.0]),
        # (1, 1) + (0.25 * (1, -1) + 0.05 * (-1, 3)) / (0.3 + 0.1)
        (MaxFL(stabilizer=0.1), [1.5, 0.75]),
    ],
)
@pytest.mark.parametrize("backwards", [False, True])
def test_only_the_good_joins_move_the_model(strategy: Strategy, expected: list[float], backwards: bool) -> None:
    replies, bad = mixed(asked(strategy))
    arrays, metrics = strategy.aggregate_train(11, replies[::-1] if backwards else replies)
    assert values_of(arrays) == pytest.approx(expected, rel=1e-6)
    assert metrics is not None
    counts = {name: metrics[name] for name in ("joined", "sat-out", "left", "failed", "surplus")}
    assert counts == {"joined": 2, "sat-out": 1, "left": 1, "failed": bad, "surplus": 0}
    assert "out of memory" in rounds_of(strategy).record.failures.values()
    assert all("\n" not in reason for reason in rounds_of(strategy).record.failures.values())


@pytest.mark.parametrize("weight", [0.3, -0.1, None])
def test_maxfl_counts_a_weight_that_cannot_be_as_failed(weight: float | None) -> None:
    strategy = MaxFL()
    first, *_ = asked(strategy)
    told = {} if weight is None else {"appeal_weight": weight}
    arrays, _ = strategy.aggregate_train(11, [reply(first, model(7, 7), decision=1, **told)])
    assert arrays is None
    assert rounds_of(strategy).record.count("failed") == 1


def test_fedavg_does_not_ask_for_the_weight() -> None:
    strategy = FedAvg()
    first, *_ = asked(strategy)
    told = first.content.config_records[keys.CONFIG]
    assert told[keys.STRATEGY] == "fedavg"
    assert not [key for key in told if key.endswith(keys.TUNING_STEPS)]
    arrays, _ = strategy.aggregate_train(11, [reply(first, model(7, 8), decision=1)])
    assert values_of(arrays) == [7, 8]


def test_a_round_that_nobody_joins_has_no_model() -> None:
    strategy = FedAvg()
    messages = asked(strategy)
    arrays, metrics = strategy.aggregate_train(11, [reply(m, decision=0) for m in messages])
    assert arrays is None
    assert metrics is not None
    assert metrics["sat-out"] == len(messages)


def test_only_the_round_that_was_opened_can_be_closed_and_that_once() -> None:
    strategy, line = FedAvg(), "server-round = {} is not allowed: configure_train did not open it"
    messages = asked(strategy)
    with pytest.raises(ConfigError, match=line.format(12)):
        strategy.aggregate_train(12, [reply(messages[0], model(7, 8), decision=1)])
    messages = asked(strategy)
    assert values_of(strategy.aggregate_train(11, [reply(messages[0], model(7, 8), decision=1)])[0]) == [7, 8]
    with pytest.raises(ConfigError, match=line.format(11)):
        strategy.aggregate_train(11, [])


def test_the_callers_configuration_is_sent_and_not_changed() -> None:
    config = ConfigRecord({"learning-rate": 0.5, keys.LOCAL_RULE: "mine"})
    before = dict(config)
    grid = MemoryGrid({10: Volunteer("a")})
    strategy = MaxFL(mandatory_rounds=3)
    (train,) = strategy.configure_train(3, model(1), config, grid)
    (evaluate,) = strategy.configure_evaluate(3, model(1), config, grid)
    assert dict(config) == before
    assert dict(train.content.config_records[keys.CONFIG]) == before | {
        keys.SERVER_ROUND: 3,
        keys.MANDATORY: 1,
        keys.STRATEGY: "maxfl",
        "maxfl.server-lr": 1.0,
        "maxfl.stabilizer": 0.001,
    }
    assert evaluate.content.config_records[keys.CONFIG][keys.SPLIT] == keys.TEST_SPLIT


def test_messages_live_as_long_as_the_round_and_late_rounds_are_not_mandatory() -> None:
    strategy = FedAvg(round_timeout=12.5)
    for message in asked(strategy, 11):
        assert message.metadata.ttl == 12.5
        assert message.metadata.message_type == "train"
        assert message.content.config_records[keys.CONFIG][keys.MANDATORY] == 0
        assert message.content.config_records[keys.CONFIG][keys.LOCAL_RULE] == "sgd"


def test_only_clients_per_round_are_asked_and_those_who_left_are_not() -> None:
    strategy = FedAvg(clients_per_round=4, seed=2)
    messages = asked(strategy)
    assert len(messages) == 4
    strategy.aggregate_train(11, [reply(m, decision=-1) for m in messages])
    gone = {m.metadata.dst_node_id for m in messages}
    for server_round in range(12, 30):
        assert not gone & {m.metadata.dst_node_id for m in asked(strategy, server_round)}


def test_evaluation_averages_the_answers_that_can_be_believed() -> None:
    strategy = FedAvg()
    grid = MemoryGrid(dict(NODES))
    messages = list(strategy.configure_evaluate(1, model(1), ConfigRecord(), grid))
    assert len(messages) == len(NODES)
    grid.push_messages(messages)
    answers = [
        reply(messages[0], accuracy=0.5, loss=1.0, appealed=1),
        reply(messages[1], accuracy=0.25, loss=3.0, appealed=0),
        reply(messages[2], accuracy=0.75, appealed=0),
        reply(messages[3], accuracy=1.5),
        reply(messages[4], accuracy=float("nan")),
        Message(Error(2, "broken"), reply_to=messages[5]),
    ]
    metrics = strategy.aggregate_evaluate(1, answers)
    assert metrics is not None
    spread = {"worst_decile_accuracy": 0.25, "lowest_accuracy": 0.25, "highest_accuracy": 0.75}
    assert dict(metrics) == pytest.approx({"accuracy": 0.5, "loss": 2.0, "gm_appeal": 1 / 3, **spread})
    assert strategy.aggregate_evaluate(1, answers[3:]) is None


@pytest.mark.parametrize(
    ("settings", "name"),
    [({"clients_per_round": 0}, "clients-per-round = 0"), ({"round_timeout": 0.0}, "round-timeout = 0.0")],
)
def test_a_setting_that_is_not_allowed_is_named(settings: dict[str, float], name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        FedAvg(**settings)  # type: ignore[arg-type]
