"""A model from which nobody can train any more ends the run; nothing less does."""

import math

import pytest
from flwr.app import ConfigRecord

from fedappeal.protocol import keys
from strategies import FedAvg, Scaffold, Strategy
from strategies.rounds.strategy import rounds_of
from strategies.rounds.sums.last_good import DIVERGED, ROUNDS, Divergence
from strategies.scaffold import CONTROL_DELTA
from tests.grid import MemoryGrid, Volunteer, Watch, run, values_of

BAD = {keys.LOSS: math.nan}


def everybody(*lost: str, names: str = "abc") -> MemoryGrid:
    """Clients whose training ends in NaN, and those that train on."""
    nodes = {10 + k: Volunteer(name, local=math.nan if name in lost else 1.0) for k, name in enumerate(names)}
    return MemoryGrid(dict(nodes))


@pytest.mark.parametrize("of", [None, 2])
def test_the_run_ends_where_nobody_can_train_from_the_model(of: int | None) -> None:
    grid, watch = everybody(), Watch()
    watch.before[3] = lambda: [setattr(node, "local", math.nan) for node in grid.nodes.values()]
    strategy = FedAvg(clients_per_round=of, evaluate_every=0)
    result, _ = run(strategy, grid, 50, watch)
    assert rounds_of(strategy).finished == DIVERGED
    assert [r.server_round for r in watch.records] == list(range(1, 3 + ROUNDS))
    assert values_of(result.arrays) == [2.0], "the model of the last round in which somebody could train"
    assert watch.records[-1].expected == 3, "the end of a run is evaluated"


def test_a_report_that_is_not_finite_counts_as_well() -> None:
    grid = MemoryGrid({10 + k: Volunteer(f"c{k}", metrics=BAD) for k in range(2)})
    strategy = FedAvg()
    run(strategy, grid, 50)
    assert rounds_of(strategy).finished == DIVERGED


def test_so_does_a_control_variate() -> None:
    class Lost(Volunteer):
        def __call__(self, message):  # type: ignore[no-untyped-def]
            reply = super().__call__(message)
            if message.metadata.message_type == "train":
                reply.content[CONTROL_DELTA] = reply.content[keys.ARRAYS]
            return reply

    grid = MemoryGrid({10: Lost("a", local=math.nan)})
    strategy = Scaffold()
    _, watch = run(strategy, grid, 50)
    assert watch.records[0].failures == {"a": f"{CONTROL_DELTA}: array 'w' has values that are not finite"}
    assert rounds_of(strategy).finished == DIVERGED


def rounds_until_end(strategy: Strategy, grid: MemoryGrid, watch: Watch | None = None) -> int:
    run(strategy, grid, 8, watch or Watch())
    assert not rounds_of(strategy).finished
    return rounds_of(strategy).record.server_round


def test_one_who_can_train_keeps_the_run_going() -> None:
    assert rounds_until_end(FedAvg(), everybody("a", "b")) == 8


@pytest.mark.parametrize("decision", [0, None, RuntimeError("out of memory")], ids=["sits out", "silent", "broken"])
def test_so_does_one_that_did_not_try(decision: object) -> None:
    grid = everybody("a", "b")
    grid.nodes[12].decision = decision  # type: ignore[union-attr]
    assert rounds_until_end(FedAvg(round_timeout=5.0), grid) == 8


def test_so_does_one_that_is_offline() -> None:
    # Else whoever is the only one online could end the run of all others.
    grid, watch = everybody("a", "b"), Watch()
    watch.before[1] = lambda: grid.nodes.pop(12)
    assert rounds_until_end(FedAvg(round_timeout=5.0), grid, watch) == 8


def test_those_who_have_left_are_not_asked_for_their_view() -> None:
    grid, strategy = everybody("a", "b"), FedAvg()
    grid.nodes[12].decision = -1  # type: ignore[union-attr]
    run(strategy, grid, 50)
    assert rounds_of(strategy).finished == DIVERGED


def test_where_all_have_left_nothing_is_said_of_the_model() -> None:
    divergence = Divergence()
    for _ in range(9):
        divergence.note("a", finite=False)
        assert not divergence.close_round(0, set())


def test_rounds_that_ask_a_few_add_up_until_somebody_joins() -> None:
    divergence, ends = Divergence(), []
    for client in "abcabc":
        divergence.note(client, finite=False)
        ends.append(divergence.close_round(0, {"a", "b", "c"}))
    assert ends == [False, False, True, True, True, True]
    assert not divergence.close_round(1, {"a", "b", "c"})
    divergence.note("a", finite=False)
    assert not divergence.close_round(0, {"a", "b", "c"})


@pytest.mark.parametrize("later", [0, None], ids=["they sit out", "an outage"])
def test_rounds_without_such_an_answer_do_not_count(later: int | None) -> None:
    def decision(told: ConfigRecord) -> int | None:
        return 1 if told[keys.SERVER_ROUND] == 1 else later

    grid = everybody("a", "b", "c")
    for node in grid.nodes.values():
        node.decision = decision  # type: ignore[union-attr]
    assert rounds_until_end(FedAvg(round_timeout=5.0), grid) == 8


def test_whoever_sits_out_later_is_no_longer_counted() -> None:
    divergence = Divergence()
    for server_round in range(1, 9):
        divergence.note("a", finite=False)
        divergence.note("b", finite=server_round > 2)
        assert not divergence.close_round(0, {"a", "b"})


def test_what_was_counted_is_carried_over() -> None:
    first = FedAvg()
    run(first, everybody("a", "b", "c"), 2)
    second = FedAvg()
    rounds_of(second).restore(rounds_of(first).state())
    _, watch = run(second, everybody("a", "b", "c"), 9, first_round=3)
    assert rounds_of(second).finished == DIVERGED
    assert len(watch.records) == ROUNDS - 2


def test_a_report_that_is_no_number_says_nothing_of_the_model() -> None:
    grid = MemoryGrid({10: Volunteer("a", metrics={keys.LOSS: [1.0, 2.0]})})  # type: ignore[dict-item]
    assert rounds_until_end(FedAvg(), grid) == 8
