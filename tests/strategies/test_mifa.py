"""MIFA's server against a table of updates written out, and against FedAvg where every client joins."""

from collections.abc import Sequence

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord

from fedappeal.settings.config import ConfigError
from strategies import MIFA, FedAvg
from strategies.rounds.strategy import rounds_of
from tests.grid import MemoryGrid, Volunteer, Watch, model, run, values_of
from tests.strategies.played import LEAVES, Floats, Joins, Turns, close, drawn, play
from tests.strategies.rounds.mixed_round import Join, answer, ask

START = np.array([0.5, -1.0, 2.0, 0.0, 3.0])


def written_out(start: Floats, rounds: Sequence[Turns], clients: int) -> list[Floats]:
    """A table with one row a client, zeros at first; a client that leaves takes its row with it."""
    table = {k: np.zeros_like(start) for k in range(clients)}
    w, models = start.copy(), []
    for turns in rounds:
        for k, turn in turns.items():
            if isinstance(turn, Joins):
                table[k] = turn.update
            else:
                table.pop(k, None)
        w = w + np.mean(list(table.values()), axis=0)
        models.append(w)
    return models


@pytest.mark.parametrize("resumed_after", [0, 7])
def test_several_rounds_are_a_table_of_updates(resumed_after: int) -> None:
    rounds = drawn(1, 25, [1.0, 0.6, 0.3, 0.05])
    rounds[4] = {}
    models = play(MIFA, START, rounds, 4, resumed_after)
    close(models, written_out(START, rounds, 4))
    assert (models[4] != models[3]).all()  # a round without a joiner moves the model by what is remembered


def test_the_update_of_a_client_that_left_is_forgotten() -> None:
    rounds = drawn(2, 12, [0.9, 0.5, 0.9])
    rounds[5] = {**rounds[5], 2: LEAVES}
    rounds[6:] = [{k: turn for k, turn in turns.items() if k != 2} for turns in rounds[6:]]
    for resumed_after in (0, 8):
        close(play(MIFA, START, rounds, 3, resumed_after), written_out(START, rounds, 3))


def test_with_full_participation_it_is_fedavgs_step_with_equal_weights() -> None:
    rounds = drawn(6, 5, [1.0, 1.0, 1.0])
    alike = [{k: Joins(turn.update) for k, turn in turns.items() if isinstance(turn, Joins)} for turns in rounds]
    close(play(MIFA, START, rounds, 3), play(FedAvg, START, alike, 3))


def test_a_client_that_joins_seldom_pulls_as_much_as_one_that_always_joins() -> None:
    one = np.ones(1)
    rounds = [{0: Joins(one), **({1: Joins(-one)} if number % 4 == 1 else {})} for number in range(1, 21)]
    assert play(MIFA, np.zeros(1), rounds, 2)[-1] == pytest.approx(0)
    assert play(FedAvg, np.zeros(1), rounds, 2)[-1] == pytest.approx(15)


def test_no_client_has_joined_yet() -> None:
    assert (play(MIFA, START, [{}, {}], 2)[1] == START).all()


def test_a_round_of_mixed_replies() -> None:
    # 30 nodes, of which one leaves for good: 1 + ((1, -1) + (-1, 5)) / 29
    strategy = MIFA()
    messages = ask(strategy, 1)
    joins = [answer(next(messages), Join(model(2, 0))), answer(next(messages), Join(model(0, 6)))]
    joins += [answer(next(messages), decision=-1), answer(next(messages), Join(model(np.nan, 1)))]
    joins += [answer(next(messages), Join(model(1, 1, 1)))]
    arrays, _ = strategy.aggregate_train(1, joins)
    assert values_of(arrays) == pytest.approx([1, 1 + 4 / 29], rel=1e-6)
    assert rounds_of(strategy).record.count("failed") == 2
    assert len(strategy.carried()["updates"]) == 2


def test_what_is_remembered_follows_the_learning_rate() -> None:
    """Client 0 joins in round 1 alone, at a third of the rate; in round 2 its update counts at two thirds."""
    strategy, grid = MIFA(lr_warmup_rounds=2), MemoryGrid({10 + k: Volunteer(str(k)) for k in range(2)})
    replies = [{10: model(31, 1)}, {11: model(1, 61)}]
    expected = [[1 + 15, 1], [1 + 2 * 15, 1 + 30]]  # in units of the rate: 90 and 0, then 90 and 90
    for number, (joins, wanted) in enumerate(zip(replies, expected, strict=True), 1):
        told = ConfigRecord({"learning-rate": 0.3})
        messages = list(strategy.configure_train(number, model(1, 1), told, grid))
        grid.push_messages(messages)
        asked = {m.metadata.dst_node_id: m for m in messages}
        arrays, _ = strategy.aggregate_train(number, [answer(asked[n], Join(w)) for n, w in joins.items()])
        assert values_of(arrays) == pytest.approx(wanted)


def test_counters_are_whole_numbers() -> None:
    def mixed(w: float, count: int) -> ArrayRecord:
        return ArrayRecord({"w": Array(np.array([w], np.float32)), "n": Array(np.array(count, np.int64))})

    grid = MemoryGrid({10: Volunteer("a"), 11: Volunteer("b")})
    strategy = MIFA()
    messages = list(strategy.configure_train(1, mixed(0, 5), ConfigRecord(), grid))
    grid.push_messages(messages)
    arrays, _ = strategy.aggregate_train(1, [answer(m, Join(mixed(1, 7 + 2 * k))) for k, m in enumerate(messages)])
    assert arrays is not None
    assert (int(arrays["n"].numpy()), arrays["n"].dtype, arrays["w"].numpy().tolist()) == (8, "int64", [1.0])


def test_offline_clients_are_remembered_and_leavers_are_not() -> None:
    grid = MemoryGrid({10: Volunteer("a", local=1.0), 11: Volunteer("b", local=3.0)})
    watch = Watch(before={2: lambda: void(grid.nodes.pop(11))})
    strategy = MIFA(evaluate_every=0, min_clients=2)
    run(strategy, grid, 3, watch)
    assert watch.models == [[2.0], [4.0], [6.0]]
    assert set(strategy.carried()["updates"]) == {"a/w", "b/w"}
    leaving = MemoryGrid({10: Volunteer("a", local=1.0), 11: Volunteer("b", decision=leaves_in_round_2, local=3.0)})
    watch, strategy = Watch(), MIFA(evaluate_every=0, min_clients=2)
    run(strategy, leaving, 3, watch)
    assert watch.models == [[2.0], [3.0], [4.0]]
    assert set(strategy.carried()["updates"]) == {"a/w"}


def leaves_in_round_2(told: ConfigRecord) -> int:
    """A volunteer's decision."""
    return -1 if told["server-round"] == 2 else 1


def void(_: object) -> None:
    """Take what a call returns."""


@pytest.mark.filterwarnings("ignore:overflow encountered")
def test_a_model_that_is_not_finite_leaves_the_memory_alone() -> None:
    strategy = MIFA()
    messages = list(ask(strategy, 1, (3e38, 0.0)))
    grown = model(3.4e38, 0)
    strategy.aggregate_train(1, [answer(m, Join(grown)) for m in messages])
    kept = strategy.carried()
    messages = list(ask(strategy, 2, (3.4e38, 0.0)))
    arrays, metrics = strategy.aggregate_train(2, [])
    assert arrays is None
    assert metrics is not None
    assert metrics["not_finite"] == 1
    assert strategy.carried() == kept


def test_what_is_not_allowed() -> None:
    with pytest.raises(ConfigError, match=r"^model with BatchNorm is not allowed with strategy = 'mifa': bn "):
        MIFA().check_model(["bn.running_var"])
    with pytest.raises(ConfigError, match=r"^aggregation = 'median' is not allowed with strategy = 'mifa'"):
        MIFA(aggregation="median")
