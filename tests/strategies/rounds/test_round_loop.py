"""The round loop: who is folded, who replaces whom, and what a round leaves behind."""

import math

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord
from hypothesis import given, settings
from hypothesis import strategies as st

import strategies.rounds.exchange.exchange
from fedappeal.protocol import keys
from fedappeal.settings.config import ConfigError, Scalar
from strategies import FedAvg
from strategies.rounds.exchange.members import Member, sampling_order
from strategies.rounds.exchange.messages import evaluate_messages
from strategies.rounds.exchange.replies import NO_ANSWER
from strategies.rounds.strategy import rounds_of
from tests.grid import MemoryGrid, Volunteer, Watch, model, opened, run, time_of, values_of

NAMES = [f"c{k}" for k in range(8)]


def crowd(count: int, **same: object) -> dict[str, Volunteer]:
    """Clients whose local models are 1, 2, 4, ...: a mean tells who was folded."""
    return {name: Volunteer(name, local=float(2**k), **same) for k, name in enumerate(NAMES[:count])}  # type: ignore[arg-type]


def grid_of(clients: dict[str, Volunteer]) -> MemoryGrid:
    return MemoryGrid({100 + int(name[1:]): client for name, client in clients.items()})


def order_of(clients: dict[str, Volunteer], server_round: int = 1, seed: int = 0) -> list[str]:
    return sampling_order(seed, server_round, list(clients))


@settings(max_examples=40)
@given(delays=st.permutations([0.0, 0.3, 1.0, 2.0, 7.0, 20.0]), backwards=st.booleans())
def test_the_first_joiners_in_order_are_folded_whoever_answers_first(delays: list[float], backwards: bool) -> None:
    clients = crowd(6)
    order = order_of(clients)
    clients[order[1]].decision = 0
    grid = grid_of(clients)
    grid.backwards = backwards
    grid.delay = lambda node, message: delays[node - 100] if message.metadata.message_type == "train" else 0.0
    _, watch = run(FedAvg(clients_per_round=3, seed=0), grid, 1)
    record = watch.records[0]
    what = ["joined", "sat-out", "joined", "joined", "surplus", "surplus"]
    assert record.decisions == dict(zip(order, what, strict=True))
    folded = [clients[order[k]].local for k in (0, 2, 3)]
    assert watch.models[0] == pytest.approx([sum(folded) / 3])
    line = record.as_line()
    assert [line[k] for k in ("asked", "joined", "sat_out", "left", "failed", "surplus")] == [6, 3, 1, 0, 0, 2]


def test_each_wave_asks_twice_as_many_as_the_last() -> None:
    clients = crowd(8, decision=0)
    order = order_of(clients)
    clients[order[7]].decision = 1
    grid = grid_of(clients)
    grid.delay = lambda node, message: 1.0
    run(FedAvg(clients_per_round=1, evaluate_every=0, seed=0), grid, 1)
    asked = [(time, m.metadata.dst_node_id) for time, m in grid.pushed if m.metadata.message_type == "train"]
    assert [f"c{node - 100}" for _, node in asked] == order
    times = [time for time, _ in asked]
    assert [times.count(t) for t in sorted(set(times))] == [1, 2, 4, 1]


def test_who_sat_out_is_replaced_while_the_others_still_train() -> None:
    clients = crowd(8)
    order = order_of(clients)
    for name in order[1:4]:
        clients[name].decision = 0
    grid = grid_of(clients)
    slow = {100 + int(name[1:]): 7.0 for name in order if clients[name].decision}
    grid.delay = lambda node, message: slow.get(node, 1.0) if message.metadata.message_type == "train" else 0.0
    _, watch = run(FedAvg(clients_per_round=2, evaluate_every=0, seed=0), grid, 1)
    pushed = [(time, m.metadata.dst_node_id) for time, m in grid.pushed if m.metadata.message_type == "train"]
    start = pushed[0][0]
    # One of the first two sits out after a second, and four more are asked while the other trains: two of them sit
    # out, and nobody needs to be asked in their place.
    assert [f"c{node - 100}" for _, node in pushed] == order[:6]
    assert [time - start for time, _ in pushed] == pytest.approx([0.0] * 2 + [1.0] * 4, abs=0.3)
    assert watch.records[0].seconds == pytest.approx(8.0, abs=0.3)
    what = ["joined", "sat-out", "sat-out", "sat-out", "joined", "surplus"]
    assert watch.records[0].decisions == dict(zip(order, what, strict=False))


def test_nobody_is_asked_in_vain_once_enough_have_joined() -> None:
    clients = crowd(8)
    grid = grid_of(clients)
    run(FedAvg(clients_per_round=2, seed=5), grid, 2)
    for server_round in (1, 2):
        order = order_of(clients, server_round, seed=5)
        assert [f"c{n - 100}" for n in grid.asked(server_round)] == order[:2]


def test_all_waves_share_one_deadline() -> None:
    clients = crowd(4, decision=0)
    grid = grid_of(clients)
    grid.delay = lambda node, message: 7.0 if message.metadata.message_type == "train" else 0.0
    _, watch = run(FedAvg(clients_per_round=1, round_timeout=10.0), grid, 1)
    ttls = [round(m.metadata.ttl, 6) for m in grid.sent("train")]
    assert ttls == pytest.approx([10.0, 3.0, 3.0], abs=0.2)
    assert watch.records[0].seconds == pytest.approx(10.0)
    assert sorted(watch.records[0].decisions.values()) == ["absent", "absent", "sat-out"]


def test_an_empty_round_leaves_the_model_as_it_is() -> None:
    clients = crowd(3, decision=lambda told: int(told[keys.SERVER_ROUND] != 2))
    _, watch = run(FedAvg(), grid_of(clients), 3)
    mean = 7 / 3
    assert [m[0] for m in watch.models] == pytest.approx([mean, mean, 2 * mean])


def mandatory_only(told: ConfigRecord) -> int:
    return int(bool(told[keys.MANDATORY]))


@pytest.mark.parametrize(
    ("on_empty_round", "mandatory", "joined"),
    [("ask-all", [1, 0, 1, 0], [3, 0, 3, 0]), ("keep", [1, 0, 0, 0], [3, 0, 0, 0])],
)
def test_after_an_empty_round(on_empty_round: str, mandatory: list[int], joined: list[int]) -> None:
    grid = grid_of(crowd(3, decision=mandatory_only))
    strategy = FedAvg(mandatory_rounds=1, on_empty_round=on_empty_round)  # type: ignore[arg-type]
    _, watch = run(strategy, grid, 4)
    assert [int(r.mandatory) for r in watch.records] == mandatory
    assert [r.count("joined") for r in watch.records] == joined
    told = [m.content.config_records[keys.CONFIG][keys.MANDATORY] for m in grid.sent("train")]
    assert told == [m for m in mandatory for _ in range(3)]


@pytest.mark.parametrize(("on_empty_round", "mandatory"), [("ask-all", [1, 0, 1, 0]), ("keep", [1, 0, 0, 0])])
def test_after_an_empty_round_of_flowers_four_methods(on_empty_round: str, mandatory: list[int]) -> None:
    grid = grid_of(crowd(3, decision=mandatory_only))
    strategy = FedAvg(mandatory_rounds=1, on_empty_round=on_empty_round)  # type: ignore[arg-type]
    told = []
    for server_round in range(1, 5):
        messages = list(strategy.configure_train(server_round, model(0), ConfigRecord(), grid))
        told.append({m.content.config_records[keys.CONFIG][keys.MANDATORY] for m in messages})
        arrays, _ = strategy.aggregate_train(server_round, grid.send_and_receive(messages))
        assert (arrays is not None) == bool(mandatory[server_round - 1])
    assert told == [{m} for m in mandatory]


def test_the_mandatory_rounds_of_a_run_whose_length_is_not_known() -> None:
    strategy, told = FedAvg(), []
    for server_round in (1, 10, 11):
        opened(strategy, server_round, model(0))
        told.append(rounds_of(strategy).record.mandatory)
    assert told == [True, True, False]
    rounds_of(strategy).setup.num_rounds = 400  # 5 % of them
    opened(strategy, 20, model(0))
    assert rounds_of(strategy).record.mandatory


def test_mandatory_rounds_by_default() -> None:
    _, watch = run(FedAvg(evaluate_every=0), grid_of(crowd(1)), 12)
    assert [r.mandatory for r in watch.records] == [True] * 10 + [False] * 2


def test_those_who_left_are_not_asked_again() -> None:
    clients = crowd(3)
    clients["c1"].decision = lambda told: -1 if told[keys.SERVER_ROUND] >= 2 else 1
    for measured, expected in ((True, 3), (False, 2)):
        grid = grid_of(clients)
        _, watch = run(FedAvg(measure_leavers=measured), grid, 4)
        assert [101 in grid.asked(r) for r in (1, 2, 3, 4)] == [True, True, False, False]
        assert [r.count("left") for r in watch.records] == [0, 1, 0, 0]
        assert [r.expected for r in watch.records] == [3, expected, expected, expected]


def test_state_is_carried_over_to_another_strategy() -> None:
    clients = crowd(3, decision=mandatory_only)
    clients["c1"].decision = -1
    first = FedAvg(mandatory_rounds=0)
    run(first, grid_of(clients), 1)
    second = FedAvg(mandatory_rounds=0)
    rounds_of(second).restore(rounds_of(first).state())
    carried = rounds_of(second).state().config_records["volunteers"]
    assert (carried["gone"], carried["pool-empty"], carried["finished"]) == (["c1"], 1, "")
    grid = grid_of(clients)
    _, watch = run(second, grid, 2, first_round=2, arrays=model(5))
    assert sorted(grid.asked(2)) == [100, 102]
    assert watch.records[0].mandatory
    assert watch.models == [[5 + (1 + 4) / 2]]
    assert [m.content.array_records[keys.ARRAYS] for m in grid.sent("query")] == [model(0)] * 3


def test_the_callers_records_are_not_changed() -> None:
    train, evaluate, call = ConfigRecord({"learning-rate": 0.1}), ConfigRecord({"a": 1}), ConfigRecord({"b": 2})
    before = [dict(c) for c in (train, evaluate, call)]
    start = model(0)
    grid = grid_of(crowd(2))
    with time_of(grid):
        FedAvg().start(grid, start, 2, train_config=train, evaluate_config=evaluate, roll_call_config=call)
    assert [dict(c) for c in (train, evaluate, call)] == before
    assert start == model(0)
    for message in grid.sent("train"):
        assert message.content.config_records[keys.CONFIG]["learning-rate"] == 0.1


@pytest.mark.parametrize(("timeout", "seconds"), [(None, 20.0), (7.0, 7.0)])
def test_a_timeout_given_to_start_is_the_deadline_of_each_exchange(timeout: float | None, seconds: float) -> None:
    grid = grid_of(crowd(3))
    grid.delay = lambda node, message: math.inf if (node, message.metadata.message_type) == (101, "train") else 0.0
    strategy = FedAvg(round_timeout=20.0, evaluate_every=0)
    _, watch = run(strategy, grid, 1, timeout=timeout)
    assert watch.records[0].seconds == pytest.approx(seconds, abs=0.5)
    assert watch.records[0].failures == {"c1": NO_ANSWER}
    with pytest.raises(ConfigError, match=r"^timeout = -1.* is not allowed"):
        run(strategy, grid, 1, timeout=-1)
    assert rounds_of(strategy).setup.shared.round_timeout == 20.0, "as the strategy was made, for another start"


def test_replies_are_not_all_held_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    start = ArrayRecord({"w": Array(np.zeros(1000, np.float32))})
    monkeypatch.setattr(strategies.rounds.exchange.exchange, "PULLED_AT_ONCE", 4 * 4200)
    for clients_per_round in (None, 25):
        grid = MemoryGrid({100 + k: Volunteer(f"c{k}") for k in range(50)})
        with time_of(grid):
            FedAvg(clients_per_round=clients_per_round, evaluate_every=0).start(grid, start, 1)
        assert len(grid.sent("train")) == (clients_per_round or 50)
        assert 1 <= grid.held <= 4


def test_of_large_models_one_reply_is_held_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strategies.rounds.exchange.exchange, "PULLED_AT_ONCE", 1)
    grid = MemoryGrid({100 + k: Volunteer(f"c{k}") for k in range(5)})
    with time_of(grid):
        FedAvg(evaluate_every=0).start(grid, ArrayRecord({"w": Array(np.zeros(1000, np.float32))}), 1)
    assert grid.held == 1


def nested(message: Message) -> int:
    """Bytes of all objects that a message's content is made of, as Flower sends them."""
    todo, total = list((message.children or {}).values()), 0
    while todo:
        item = todo.pop()
        total += len(item.deflate())
        todo += (item.children or {}).values()
    return total


def test_bytes_are_those_of_the_messages_objects() -> None:
    start = ArrayRecord({"w": Array(np.zeros(20_000, np.float32))})
    grid = grid_of(crowd(3))
    watch = Watch()
    watch.on_round_end = lambda record, arrays: watch.records.append(record)  # type: ignore[method-assign]
    with time_of(grid):
        FedAvg(clients_per_round=2).start(grid, start, 1, hooks=watch)
    (record,) = watch.records
    assert record.bytes_down == pytest.approx(sum(map(nested, grid.sent("train") + grid.sent("evaluate"))), rel=0.02)
    assert record.bytes_up == pytest.approx(2 * 80_000, rel=0.02)


def test_an_exception_in_a_hook_ends_the_run() -> None:
    def stop() -> None:
        raise RuntimeError("stop here")

    grid = grid_of(crowd(2))
    with pytest.raises(RuntimeError, match="stop here"):
        run(FedAvg(), grid, 5, Watch(after={2: stop}))
    assert not grid.sent("train", 3)


NAN = float("nan")
NUMBERS = (
    *("clients_per_round", "min_clients", "start_timeout", "round_timeout", "seed"),
    "evaluate_every",
)


@pytest.mark.parametrize(
    ("setting", "values", "allowed"),
    [
        ("clients_per_round", (0, -1), "input should be greater than or equal to 1"),
        ("min_clients", (0, -3), "input should be greater than or equal to 1"),
        ("start_timeout", (0, -0.5), "input should be greater than 0"),
        ("round_timeout", (0.0, -1), "input should be greater than 0"),
        ("seed", (-1,), "input should be greater than or equal to 0"),
        ("mandatory_rounds", (-1, NAN, "all"), "auto, or a whole number, at least 0"),
        ("on_empty_round", ("ask", "", NAN), "input should be 'ask-all' or 'keep'"),
        ("evaluate_every", (-1,), "input should be greater than or equal to 0"),
        *((name, (NAN,), "input should be a finite number") for name in NUMBERS),
    ],
)
def test_a_shared_setting_that_is_not_allowed_is_one_line(setting: str, values: list[object], allowed: str) -> None:
    for value in values:
        with pytest.raises(ConfigError) as error:
            FedAvg(**{setting: value})  # type: ignore[arg-type]
        assert str(error.value) == f"{setting.replace('_', '-')} = {value!r} is not allowed: {allowed}"


def test_the_least_that_is_allowed() -> None:
    FedAvg(
        clients_per_round=1, min_clients=1, start_timeout=1e-9, round_timeout=1e-9,
        seed=0, mandatory_rounds=0, on_empty_round="keep", evaluate_every=0,
    )  # fmt: skip


def test_the_server_evaluates_each_evaluated_model_too() -> None:
    seen: list[tuple[int, list[float]]] = []

    def evaluated(server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
        seen.append((server_round, values_of(arrays)))
        return MetricRecord({"central": 10 * server_round}) if server_round != 4 else None

    strategy = FedAvg(evaluate_every=2, seed=0)
    result, watch = run(strategy, grid_of(crowd(2)), 5, evaluate_fn=evaluated)
    assert seen == [(n, watch.models[n - 1]) for n in (2, 4, 5)]
    assert {n: dict(record) for n, record in result.evaluate_metrics_serverapp.items()} == {
        2: {"central": 20},
        5: {"central": 50},
    }
    assert [record.metrics.get("central") for record in watch.records] == [None, 20.0, None, None, 50.0]


@pytest.mark.parametrize(("left", "ttl"), [(30.0, 30.0), (0.2, 0.2), (-1.0, 0.001)])
def test_a_message_lives_until_the_deadline_and_never_less_than_nothing(left: float, ttl: float) -> None:
    MemoryGrid()
    told: dict[str, Scalar] = {keys.SERVER_ROUND: 1}
    ((_, message),) = evaluate_messages([Member("a", 10)], model(0.0), told, left)
    assert message.metadata.ttl == pytest.approx(ttl)
