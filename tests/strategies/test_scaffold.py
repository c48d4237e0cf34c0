"""SCAFFOLD's server: two sums by hand, control variates that both sides agree on, and where it converges."""

from pathlib import Path

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message

from fedappeal.protocol import keys
from fedappeal.settings.config import ConfigError, RunConfig
from server.build import check_settings
from server.checkpoints import Checkpoint
from strategies import FedAvg, Scaffold
from strategies.rounds.strategy import rounds_of, shared_of
from strategies.scaffold import CONTROL, CONTROL_DELTA, CONTROL_ROUND
from tests.grid import Handler, MemoryGrid, Volunteer, model, values_of
from tests.quadratics import config, drifted, learned, nodes, optimum
from tests.quadratics import model as line
from tests.strategies.rounds.mixed_round import Join, answer, ask, check_mixed

ROUND_OF_C = f"scaffold.{CONTROL_ROUND}"


def joined(arrays: ArrayRecord, change: ArrayRecord) -> Join:
    return Join(arrays, {}, {CONTROL_DELTA: change})


def told(message: Message, key: str) -> object:
    return message.content.config_records[keys.CONFIG][key]


def control(message: Message) -> list[float]:
    return values_of(message.content.array_records[CONTROL])


def test_a_round_by_hand() -> None:
    strategy = Scaffold(server_lr=0.5)
    first, second, *_ = messages = list(ask(strategy, 1))
    assert all(control(m) == [0, 0] and told(m, ROUND_OF_C) == 0 for m in messages)
    assert told(first, keys.LOCAL_RULE) == "scaffold"
    replies = [
        answer(first, joined(model(3, 1), model(6, 0)), num_examples=1),
        answer(second, joined(model(1, 5), model(0, -9)), num_examples=1000),
    ]
    arrays, _ = strategy.aggregate_train(1, replies)
    # (1, 1) + 0.5 * mean((2, 0), (0, 4)): unweighted, whatever they hold
    assert values_of(arrays) == pytest.approx([1.5, 2.0])
    again = list(ask(strategy, 2))
    # |S| / N * mean of the changes = (6, -9) / 30 nodes
    assert all(control(m) == pytest.approx([0.2, -0.3]) for m in again)
    assert [told(m, ROUND_OF_C) for m in again[:3]] == [1, 1, 0]
    strategy.aggregate_train(2, [answer(again[0], joined(model(1, 1), model(-3, 3)))])
    after = list(ask(strategy, 3))
    assert control(after[0]) == pytest.approx([0.1, -0.2])
    assert [told(m, ROUND_OF_C) for m in after[:3]] == [2, 1, 0]


def test_a_round_of_mixed_replies() -> None:
    strategy = Scaffold(server_lr=2.0)
    zero = model(0, 0)
    # (1, 1) + 2 * mean((1, -1), (-1, 3))
    check_mixed(strategy, [joined(model(2, 0), zero), joined(model(0, 4), zero)], [1.0, 3.0])


@pytest.mark.parametrize(
    "wrong",
    [
        model(1, np.nan),
        model(1),
        ArrayRecord({"v": Array(np.zeros(2, np.float32))}),
        ArrayRecord({"w": Array(np.zeros(2))}),
    ],
)
def test_a_reply_counts_whole_or_not_at_all(wrong: ArrayRecord) -> None:
    strategy = Scaffold()
    first, second, third, *_ = ask(strategy, 1)
    good, fine = model(3, 3), model(30, 60)
    replies = [answer(first, joined(good, wrong)), answer(second, joined(wrong, fine))]
    arrays, _ = strategy.aggregate_train(1, replies)
    assert arrays is None
    assert rounds_of(strategy).record.failures[first_id(first)].startswith("control-delta: ")
    assert control(next(ask(strategy, 2))) == [0, 0]
    replies = [replies[0], answer(third, joined(good, fine)), replies[1]]
    arrays, _ = strategy.aggregate_train(2, replies)
    assert values_of(arrays) == [3, 3]
    assert [(control(m), told(m, ROUND_OF_C)) for m in list(ask(strategy, 3))[:3]] == [
        ([1, 2], 0),
        ([1, 2], 0),
        ([1, 2], 2),
    ]


def first_id(message: Message) -> str:
    return str(message.metadata.dst_node_id)


def test_a_surplus_reply_does_not_count_on_either_side() -> None:
    strategy = Scaffold(clients_per_round=1)
    grid = MemoryGrid({node: Volunteer(str(node)) for node in (10, 11)})
    (first,) = strategy.configure_train(1, model(0), ConfigRecord(), grid)
    other = Message(first.content, 21 - first.metadata.dst_node_id, "train", group_id="1")
    grid.push_messages([first, other])
    strategy.aggregate_train(1, [answer(m, joined(model(4), model(8))) for m in (first, other)])
    assert rounds_of(strategy).record.count("surplus") == 1
    rounds_of(strategy).setup.shared = shared_of(strategy).model_copy(update={"clients_per_round": 2})
    after = {m.metadata.dst_node_id: m for m in strategy.configure_train(2, model(0), ConfigRecord(), grid)}
    assert all(control(m) == [4] for m in after.values())  # 8 / 2 nodes
    assert told(after[first.metadata.dst_node_id], ROUND_OF_C) == 1
    assert told(after[other.metadata.dst_node_id], ROUND_OF_C) == 0


@pytest.mark.filterwarnings("ignore:overflow encountered")
def test_a_model_that_is_not_finite_leaves_the_control_variate_alone() -> None:
    strategy = Scaffold(server_lr=10.0)
    first, *_ = ask(strategy, 1)
    arrays, metrics = strategy.aggregate_train(1, [answer(first, joined(model(3e38, 0), model(1, 1)))])
    assert arrays is None
    assert metrics is not None
    assert metrics["not_finite"] == 1
    again = next(ask(strategy, 2))
    assert (control(again), told(again, ROUND_OF_C)) == ([0, 0], 0)


def test_counters_of_a_model_with_buffers() -> None:
    def mixed(w: float, count: int) -> ArrayRecord:
        return ArrayRecord({"w": Array(np.array([w], np.float32)), "n": Array(np.array(count, np.int64))})

    grid = MemoryGrid({10: Volunteer("a"), 11: Volunteer("b")})
    strategy = Scaffold()
    messages = list(strategy.configure_train(1, mixed(0, 5), ConfigRecord(), grid))
    grid.push_messages(messages)
    replies = [answer(m, joined(mixed(2 * k, 7 + 2 * k), mixed(1, 0))) for k, m in enumerate(messages)]
    arrays, _ = strategy.aggregate_train(1, replies)
    assert arrays is not None
    assert (arrays["w"].numpy().tolist(), arrays["n"].numpy().tolist()) == ([1.0], 8)
    sent = next(iter(strategy.configure_train(2, arrays, ConfigRecord(), grid))).content.array_records[CONTROL]
    assert (sent["w"].numpy().tolist(), sent["n"].numpy().tolist(), sent["n"].dtype) == ([1.0], 0, "int64")


def test_c_stays_the_mean_while_clients_arrive() -> None:
    strategy = Scaffold()
    grid = MemoryGrid({10: Volunteer("a")})
    (message,) = strategy.configure_train(1, model(0), ConfigRecord(), grid)
    grid.push_messages([message])
    strategy.aggregate_train(1, [answer(message, joined(model(1), model(6)))])
    for arrived, mean in ((10, 6), (11, 3), (12, 2)):  # c_i = 0 for those who are new
        grid.nodes[arrived] = Volunteer(str(arrived))
        assert control(next(iter(strategy.configure_train(2, model(0), ConfigRecord(), grid)))) == [mean]


def test_a_client_that_did_not_come_back_after_a_resume_still_counts() -> None:
    strategy, grid = Scaffold(), MemoryGrid({10: Volunteer("a"), 11: Volunteer("b")})
    messages = list(strategy.configure_train(1, model(0), ConfigRecord(), grid))
    grid.push_messages(messages)
    strategy.aggregate_train(1, [answer(m, joined(model(1), model(6))) for m in messages])
    resumed = Scaffold()
    rounds_of(resumed).restore(rounds_of(strategy).state())
    grid = MemoryGrid({11: Volunteer("b")})
    assert control(next(iter(resumed.configure_train(2, model(0), ConfigRecord(), grid)))) == [6]  # 12 / 2


@pytest.mark.parametrize("clients", [2, 3])
def test_fedavg_drifts_and_scaffold_finds_the_optimum(clients: int) -> None:
    run, all_of_them = config(clients), range(clients)
    assert abs(drifted(all_of_them) - optimum(all_of_them)) > 0.19  # 0.604 for 0.8; 0.216 for 0.429
    assert learned(FedAvg(), MemoryGrid(nodes(run)), 20, run) == pytest.approx(drifted(all_of_them), rel=1e-9)
    found = learned(Scaffold(), MemoryGrid(nodes(run)), 45, run)
    assert found == pytest.approx(optimum(all_of_them), rel=1e-7)


def test_the_first_round_is_unweighted_fedavgs() -> None:
    run = config(3)
    one = learned(Scaffold(), MemoryGrid(nodes(run)), 1, run)
    assert one == pytest.approx(learned(FedAvg(), MemoryGrid(nodes(run)), 1, run), rel=1e-14)


def test_replies_that_are_lost_do_not_move_the_optimum() -> None:
    """The client has trained, the server never hears of it: were c_i to move all the same, c would not be the mean
    of the c_i any more, and the federation would stop elsewhere."""
    run = config(3)

    def lossy(handler: Handler, lost: set[str]) -> Handler:
        def answer_or_not(message: Message) -> Message | None:
            reply = handler(message)
            return None if message.metadata.message_type == "train" and message.metadata.group_id in lost else reply

        return answer_or_not

    clients = nodes(run)
    lost = {100: {"1", "6"}, 101: {"2", "3", "9"}, 102: {"4"}}
    grid = MemoryGrid({node: lossy(handler, lost[node]) for node, handler in clients.items()})
    assert learned(Scaffold(), grid, 60, run) == pytest.approx(optimum(range(3)), rel=1e-7)


def test_few_clients_a_round() -> None:
    run = config(3, local_steps=3)
    found = learned(Scaffold(clients_per_round=1, seed=3), MemoryGrid(nodes(run)), 100, run)
    assert found == pytest.approx(optimum(range(3)), rel=1e-6)


def test_a_run_that_was_interrupted_goes_on_as_if_it_had_not_been(tmp_path: Path) -> None:
    def rounds(strategy: Scaffold, grid: MemoryGrid, first: int, last: int, arrays: ArrayRecord) -> ArrayRecord:
        for server_round in range(first, last + 1):
            told = ConfigRecord({keys.RUN_KEY: "k"})
            messages = sorted(
                strategy.configure_train(server_round, arrays, told, grid), key=lambda m: m.metadata.dst_node_id
            )
            updated, _ = strategy.aggregate_train(server_round, grid.send_and_receive(messages))
            assert updated is not None
            arrays = updated
        return arrays

    run = config(3)
    whole = rounds(Scaffold(), MemoryGrid(nodes(run, tmp_path / "whole")), 1, 6, line())
    strategy, grid = Scaffold(), MemoryGrid(nodes(run, tmp_path / "parts"))
    three = rounds(strategy, grid, 1, 3, line())
    Checkpoint(3, line(), three, rounds_of(strategy).state()).write(tmp_path / "checkpoint")
    rounds(strategy, grid, 4, 4, three)  # round 4 ran, and then the server was gone
    saved, resumed = Checkpoint.read(tmp_path / "checkpoint"), Scaffold()
    rounds_of(resumed).restore(saved.state)
    again = rounds(resumed, MemoryGrid(nodes(run, tmp_path / "parts")), 4, 6, saved.arrays)
    assert again == whole


def test_the_state_before_the_first_round(tmp_path: Path) -> None:
    Checkpoint(0, model(1), model(1), rounds_of(Scaffold()).state()).write(tmp_path / "checkpoint")
    strategy = Scaffold()
    rounds_of(strategy).restore(Checkpoint.read(tmp_path / "checkpoint").state)
    assert control(next(ask(strategy, 1))) == [0, 0]


def test_a_bounded_run_says_that_a_checkpoint_without_clients_control_variates_begins_anew(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run, strategy, told = config(3), Scaffold(), ConfigRecord({keys.RUN_KEY: "k"})
    grid = MemoryGrid(nodes(run, tmp_path))
    model_after, _ = strategy.aggregate_train(
        1, grid.send_and_receive(strategy.configure_train(1, line(), told, grid))
    )
    assert model_after is not None
    before = Checkpoint(1, line(), model_after, rounds_of(strategy).state())
    before.write(tmp_path / "checkpoint")
    line_of_log = "the checkpoint has no client's control variate by itself: all begin with zero again"
    for influence, said in (("off", []), ("bounded", [line_of_log])):
        resumed = Scaffold(influence=influence)
        rounds_of(resumed).restore(Checkpoint.read(tmp_path / "checkpoint").state)
        caplog.clear()
        sent = list(resumed.configure_train(2, model_after, told, grid))
        assert [record.message for record in caplog.records if "control variate" in record.message] == said
        variates = sent[0].content.array_records[CONTROL].values()
        assert any(array.numpy().any() for array in variates) is not bool(said)


def test_settings_that_are_not_allowed_are_named() -> None:
    with pytest.raises(
        ConfigError, match=r"^scaffold\.server-lr = 0\.0 is not allowed: input should be greater than 0$"
    ):
        Scaffold(server_lr=0.0)
    with pytest.raises(ConfigError, match=r"momentum = 0\.9 is not allowed with local-rule = 'scaffold': 0"):
        check_settings(RunConfig(strategy="scaffold", momentum=0.9))
    check_settings(RunConfig(strategy="scaffold", weight_decay=0.1))
