"""Pace: a client that is slow alone is waited for less, and is forgiven."""

import math

import pytest
from flwr.app import Error, Message
from flwr.common.constant import ErrorCode

from strategies import FedAvg, RoundRecord
from strategies.adagd import AdaGD
from strategies.rounds.exchange.pace import FACTOR, FLOOR, AnswerTime, Pace, limit
from tests.grid import MemoryGrid, Volunteer, Watch, run


def took(*seconds: float) -> dict[str, AnswerTime]:
    """Answers of c0, c1, ... at exactly these times."""
    return {f"c{k}": AnswerTime(each, each) for k, each in enumerate(seconds)}


def test_the_limit_is_three_times_the_median_of_at_least_two_others_and_two_seconds() -> None:
    assert (FACTOR, FLOOR) == (3.0, 2.0)
    assert limit([]) == limit([5.0]) == math.inf
    assert limit([1.0, 2.0, 30.0]) == 6.0
    assert limit([1.0, 2.0]) == 4.5
    assert limit([0.01, 0.02]) == 2.0


def test_a_client_is_slow_from_its_second_slow_answer_until_four_in_time() -> None:
    pace, states = Pace(binds=True), []
    for own in (100.0, 100.0, 1.0, 1.0, 1.0, 1.0, 100.0, *[1.0] * 8):
        pace.note("train", took(1.0, 1.2, own))
        states.append(pace.is_slow("c2"))
    # Slow twice: four answers in time are owed; slow a third time: eight.
    assert states == [False, True, True, True, True, False, True, *[True] * 7, False]
    assert not pace.is_slow("c0")


def test_one_that_takes_turns_is_waited_for_ever_more_seldom() -> None:
    pace, full = Pace(binds=True), 0
    for _ in range(1000):  # slow whenever it is trusted
        slow = not pace.is_slow("c3")
        full += slow
        pace.note("train", took(1.0, 1.0, 1.0, 100.0 if slow else 1.0))
    assert full == 2 + 7  # 4 + 8 + ... + 256 answers in time come between


@pytest.mark.parametrize(
    "times",
    [(100.0, 100.0, 100.0), (50.0, 100.0, 149.0), (1.0, 100.0), (0.1, 0.1, 1.9), (10.0, 10.0, 30.0)],
    ids=["all slow", "like speed", "two clients", "noise", "three times"],
)
def test_none_is_slow_where_all_are_or_nothing_can_be_compared(times: tuple[float, ...]) -> None:
    pace = Pace(binds=True)
    for _ in range(5):
        pace.note("train", took(*times))
    assert not any(pace.is_slow(f"c{k}") for k in range(len(times)))


def test_one_that_sits_out_is_no_measure_for_one_that_trains() -> None:
    pace = Pace(binds=True)
    for _ in range(5):
        quick = {f"q{k}": AnswerTime(0.1, 0.1, worked=False) for k in range(9)}
        pace.note("train", quick | took(60.0, 61.0, 62.0))
    assert not any(pace.is_slow(f"c{k}") for k in range(3))


def test_a_reply_that_was_looked_for_late_is_not_held_against_its_client() -> None:
    pace = Pace(binds=True)
    for _ in range(5):
        pace.note("train", took(1.0, 1.0) | {"behind": AnswerTime(0.0, 100.0)})
    assert not pace.is_slow("behind")


def test_one_asked_alone_is_compared_with_what_others_took_at_their_turn() -> None:
    pace = Pace(binds=True)
    for client, own in (("a", 1.0), ("b", 2.0), ("c", 1.0), ("slow", 50.0), ("slow", 50.0)):
        pace.note("train", {client: AnswerTime(own, own)})
    assert pace.is_slow("slow")
    assert pace.patience("train", "slow", []) == 3.0
    assert pace.patience("evaluate", "slow", []) == math.inf
    assert not any(map(pace.is_slow, "abc"))


def test_silence_counts_as_slow() -> None:
    pace = Pace(binds=True)
    for _ in range(2):
        pace.note("train", took(1.0, 1.0) | {"silent": AnswerTime(60.0)})
    assert pace.is_slow("silent")


def test_in_one_process_it_never_binds() -> None:
    pace = Pace()
    for _ in range(5):
        pace.note("train", took(1.0, 1.0, 100.0))
    assert not pace.is_slow("c2")


# -- in rounds, on a clock that does not tick ------------------------------------------------------------


def federation(kinds: tuple[str, ...], seconds: float = 55.0, **clients: float) -> MemoryGrid:
    """Three clients; c2 takes this long in messages of these kinds, and the others as long as is said."""
    grid = MemoryGrid({10 + k: Volunteer(f"c{k}", local=float(k + 1)) for k in range(3)})

    def delay(node: int, message: Message) -> float:
        kind = message.metadata.message_type
        if node != 12:
            return clients.get(f"c{node - 10}", 0.5) if kind != "query" else 0.0
        return seconds if kind in kinds else 0.5 if kind != "query" else 0.0

    grid.delay = delay
    return grid


def seconds_of(watch: Watch) -> list[float]:
    return [round(record.seconds, 1) for record in watch.records]


def remote(grid: MemoryGrid, rounds: int, **settings: object) -> tuple[Watch, list[RoundRecord]]:
    """A run whose clients count as other machines."""
    _, watch = run(FedAvg(round_timeout=60.0, **settings), grid, rounds, pace=Pace(binds=True))
    return watch, watch.records


def test_training_just_before_each_deadline_costs_two_rounds() -> None:
    _watch, records = remote(federation(("train",)), 6, evaluate_every=0)
    assert [record.seconds > 50 for record in records] == [True, True, *[False] * 4]
    assert all(record.seconds < 3.5 for record in records[2:])
    assert records[2].failures == {"c2": "slow alone: not waited for after 2.1 s, 3 times the median of the others"}
    assert [record.decisions["c2"] for record in records] == ["joined", "joined", *["absent"] * 4]


def test_evaluations_count_as_well_and_say_why_one_is_missing() -> None:
    _watch, records = remote(federation(("evaluate",)), 4)
    assert [record.seconds > 50 for record in records] == [True, True, False, False]
    assert records[2].failures["c2"].startswith("evaluation: slow alone")
    assert [record.evaluated for record in records] == [3, 3, 2, 2]
    assert [record.decisions["c2"] for record in records] == ["joined"] * 4


def test_both_kinds_are_one_memory() -> None:
    _watch, records = remote(federation(("train", "evaluate")), 3)
    assert [record.seconds > 50 for record in records] == [True, False, False]


def test_a_client_that_mends_is_waited_for_again() -> None:
    grid = federation(("train",))
    slow = grid.delay
    grid.delay = lambda node, message: (
        slow(node, message) if int(message.metadata.group_id) < 3 or int(message.metadata.group_id) > 6 else 0.5
    )
    _watch, records = remote(grid, 7, evaluate_every=0)
    assert [record.decisions["c2"] for record in records] == ["joined"] * 7
    assert records[6].seconds > 50, "after four answers in time it is trusted again"


def test_a_slow_one_is_measured_in_its_round_by_those_alone_that_trained() -> None:
    grid = federation(("train",), c0=10.0, c1=10.0)
    grid.nodes |= {13 + k: Volunteer(f"c{3 + k}", decision=0) for k in range(4)}
    _watch, records = remote(grid, 3, evaluate_every=0)
    assert "slow alone: not waited for after 30." in records[2].failures["c2"], "3 times 10 s, and not of no time"


def test_the_superlinks_word_that_there_is_no_reply_is_no_answer_in_time() -> None:
    grid = federation(("train",), seconds=50.0)
    volunteer = grid.nodes[12]

    def lost(message: Message) -> Message | None:
        if message.metadata.message_type == "train":
            return Message(Error(ErrorCode.NODE_UNAVAILABLE, "offline"), reply_to=message)
        return volunteer(message)

    grid.nodes[12] = lost
    _watch, records = remote(grid, 3, evaluate_every=0)
    assert [record.failures["c2"].partition(":")[0] for record in records] == ["offline", "offline", "slow alone"]


@pytest.mark.parametrize("others", [40.0, 20.0], ids=["as slow", "not three times"])
def test_where_the_others_take_long_too_each_is_waited_for(others: float) -> None:
    _watch, records = remote(federation(("train",), c0=others, c1=others), 4, evaluate_every=0)
    assert [record.count("joined") for record in records] == [3] * 4


def test_in_a_simulation_the_slow_one_is_waited_for() -> None:
    _, watch = run(FedAvg(round_timeout=60.0, evaluate_every=0), federation(("train",)), 4)
    assert [record.count("joined") for record in watch.records] == [3] * 4


def test_a_strategy_that_needs_all_says_so() -> None:
    assert AdaGD(step_size=0.1).waits_for_all
    assert not AdaGD(step_size=0.1, on_missing="proceed").waits_for_all
