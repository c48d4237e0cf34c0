"""Nodes whose ClientApp has no roll call: enrolled by their node ids, they take part with named arrays."""

from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict

from fedappeal.flower.messages import has_no_handler
from fedappeal.protocol import keys
from strategies import FedAvg, MaxFL, RoundRecord, Strategy
from strategies.rounds.exchange.members import Member
from strategies.rounds.intake import NO_VOLUNTEER
from tests.grid import MemoryGrid, Volunteer, Watch, time_of
from tests.strategies.foreign import Foreign, record

LAYERS = {"layer.weight": np.zeros((2, 3), np.float32), "layer.bias": np.ones(2, np.float64)}


class Rounds(Watch):
    """Keeps the records of the rounds, of a model with several arrays."""

    def on_round_end(self, record: RoundRecord, arrays: ArrayRecord) -> None:
        self.records.append(record)


def federate(strategy: Strategy, grid: MemoryGrid, rounds: int) -> tuple[dict[str, Any], Rounds]:
    """Run from `LAYERS`; return the last model's values by name, and what was recorded."""
    watch = Rounds()
    told = ConfigRecord({keys.RUN_KEY: "k"})
    with time_of(grid):
        result = strategy.start(grid, record(LAYERS), rounds, hooks=watch, train_config=told, roll_call_config=told)
    return {name: array.numpy() for name, array in result.arrays.items()}, watch


def pair() -> tuple[list[Foreign], MemoryGrid]:
    clients = [Foreign(step=1.0, examples=10), Foreign(step=3.0, examples=30)]
    return clients, MemoryGrid({10 + k: client.handler(10 + k) for k, client in enumerate(clients)})


def test_its_answer_to_the_roll_call_is_flowers_own_error() -> None:
    _, grid = pair()
    grid.nodes[11] = Volunteer("b", refuses="no data")
    messages = [Message(RecordDict({keys.ARRAYS: record(LAYERS)}), node, "query", group_id="0") for node in (10, 11)]
    found = {reply.metadata.src_node_id: has_no_handler(reply) for reply in grid.send_and_receive(messages)}
    assert found == {10: True, 11: False}


def test_it_is_enrolled_by_its_node_id_and_takes_part_with_named_arrays() -> None:
    clients, grid = pair()
    model, watch = federate(FedAvg(min_clients=2), grid, 2)
    assert watch.enrolled == [("10", 1), ("11", 2)]
    assert watch.refused == {}
    assert [r.decisions for r in watch.records] == [{"10": "joined", "11": "joined"}] * 2
    assert not any(r.failures for r in watch.records)
    # Each round adds (10 * 1 + 30 * 3) / 40 = 2.5.
    assert {name: (v.shape, v.dtype.name, set(v.ravel())) for name, v in model.items()} == {
        "layer.weight": ((2, 3), "float32", {5.0}),
        "layer.bias": ((2,), "float64", {6.0}),
    }
    assert [r.metrics["accuracy"] for r in watch.records] == [0.5, 0.5]
    assert [(r.evaluated, r.expected) for r in watch.records] == [(2, 2)] * 2
    assert [client.got for client in clients] == [["query", "train", "evaluate", "train", "evaluate"]] * 2
    for message in grid.sent("train"):
        assert list(message.content.array_records[keys.ARRAYS]) == list(LAYERS)


def test_it_is_a_client_like_others_beside_those_that_answer_the_roll_call() -> None:
    _, grid = pair()
    grid.nodes[12] = Volunteer("named", local=5.0, examples=40)
    model, watch = federate(FedAvg(min_clients=3, mandatory_rounds=0), grid, 1)
    assert watch.records[0].decisions == {"10": "joined", "11": "joined", "named": "joined"}
    assert set(model["layer.weight"].ravel()) == {3.75}  # (10 * 1 + 30 * 3 + 40 * 5) / 80
    assert Member.bare(10).enrolled is False
    assert Member("named", 12).enrolled is True


def test_one_that_comes_back_under_another_node_id_is_another_client() -> None:
    clients, grid = pair()
    strategy, watch = FedAvg(), Rounds()

    def moved() -> None:
        del grid.nodes[11]
        grid.nodes[20] = clients[1].handler(20)

    watch.before = {2: moved}
    with time_of(grid):
        strategy.start(grid, record(LAYERS), 2, hooks=watch)
    assert watch.enrolled == [("10", 1), ("11", 2), ("20", 3)]
    assert [sorted(r.decisions) for r in watch.records] == [["10", "11"], ["10", "20"]]


@pytest.mark.filterwarnings("ignore:overflow")
@pytest.mark.parametrize("step", [float("nan"), 1e39])
def test_its_model_is_checked_like_any_other(step: float) -> None:
    _, grid = pair()
    grid.nodes[11] = Foreign(step, examples=10).handler(11)  # 1e39 is more than float32 holds
    model, watch = federate(FedAvg(min_clients=2), grid, 1)
    assert watch.records[0].decisions == {"10": "joined", "11": "failed"}
    assert "has values that are not finite" in watch.records[0].failures["11"]
    assert set(model["layer.weight"].ravel()) == {1.0}


def test_a_strategy_that_needs_a_report_says_in_one_line_that_there_is_none() -> None:
    _, grid = pair()
    model, watch = federate(MaxFL(min_clients=2), grid, 1)
    assert watch.records[0].failures == dict.fromkeys(("10", "11"), NO_VOLUNTEER)
    assert set(model["layer.weight"].ravel()) == {0.0}


def test_of_a_node_that_says_nothing_nothing_is_assumed() -> None:
    assert Member.bare(10) == Member(
        client_id="10", node_id=10, role=keys.SEEN, priority=False, num_examples=1, left=False, version="", key_id=""
    )
