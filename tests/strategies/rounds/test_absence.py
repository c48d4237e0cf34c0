"""Deadlines, clients that miss them, clients that come, go, and come back."""

import pytest
from flwr.app import Message

from fedappeal.protocol import keys
from strategies import FedAvg, RoundRecord
from strategies.rounds.exchange.exchange import NO_ANSWER, NOT_SENT
from strategies.rounds.exchange.members import sampling_order
from strategies.rounds.strategy import rounds_of, shared_of
from tests.grid import MemoryGrid, Volunteer, Watch, run

Delays = dict[tuple[int, int], float]


def delayed(grid: MemoryGrid, delays: Delays) -> MemoryGrid:
    """Delay TRAIN messages by (node, round)."""

    def delay(node: int, message: Message) -> float:
        if message.metadata.message_type != "train":
            return 0.0
        return delays.get((node, int(message.metadata.group_id)), 0.0)

    grid.delay = delay
    return grid


def trio() -> MemoryGrid:
    return MemoryGrid({10 + k: Volunteer(f"c{k}", local=float(2**k)) for k in range(3)})


def became(records: list[RoundRecord], client: str) -> list[str | None]:
    return [r.decisions.get(client) for r in records]


def test_after_the_deadline_a_round_goes_on_with_those_who_answered() -> None:
    grid = delayed(trio(), {(12, 1): 1000.0})
    _, watch = run(FedAvg(round_timeout=60.0), grid, 1)
    (record,) = watch.records
    assert record.decisions == {"c0": "joined", "c1": "joined", "c2": "absent"}
    assert record.failures == {"c2": NO_ANSWER}
    assert watch.models == [[1.5]]
    assert 60.0 <= record.seconds < 60.5


def test_an_absent_client_is_asked_but_not_waited_for() -> None:
    grid = delayed(trio(), {(12, r): 1000.0 for r in (1, 2, 3)})
    _, watch = run(FedAvg(round_timeout=60.0, evaluate_every=0), grid, 3)
    assert became(watch.records, "c2") == ["absent"] * 3
    assert [12 in grid.asked(r) for r in (1, 2, 3)] == [True] * 3
    assert [r.seconds < 1.0 for r in watch.records] == [False, True, True]


def test_a_client_that_answers_again_is_waited_for_again() -> None:
    # Round 1 ends at 60 without c2; its answer comes at 100, in round 2, in which c0 needs until 110; c2 answers
    # round 2 at 115, which is waited for, and round 3 after 30 s.
    delays = {(12, 1): 100.0, (10, 2): 50.0, (12, 2): 55.0, (12, 3): 30.0}
    _, watch = run(FedAvg(round_timeout=60.0), delayed(trio(), delays), 3)
    assert became(watch.records, "c2") == ["absent", "joined", "joined"]
    assert [r.seconds for r in watch.records] == pytest.approx([60, 55, 30], abs=0.5)
    assert watch.models[0] == [1.5]


def test_an_answer_to_the_evaluation_counts_as_an_answer() -> None:
    grid = delayed(trio(), {(12, 1): 1000.0, (12, 2): 30.0})
    _, watch = run(FedAvg(round_timeout=60.0), grid, 2)
    assert became(watch.records, "c2") == ["absent", "joined"]
    assert watch.records[1].seconds == pytest.approx(30, abs=0.5)


def test_an_outage_of_everybody_does_not_use_up_the_rounds() -> None:
    delays = {(node, 1): 1000.0 for node in (10, 11, 12)} | {(node, 2): 20.0 for node in (10, 11, 12)}
    _, watch = run(FedAvg(round_timeout=60.0), delayed(trio(), delays), 2)
    assert [r.count("joined") for r in watch.records] == [0, 3]
    assert [r.seconds for r in watch.records] == pytest.approx([60, 20], abs=0.5)


def test_at_the_deadline_those_behind_a_silent_client_count_in_their_order() -> None:
    names = [f"c{k}" for k in range(6)]
    order = sampling_order(0, 1, names)
    clients = {name: Volunteer(name, local=float(2**k)) for k, name in enumerate(names)}
    clients[order[0]].decision = clients[order[1]].decision = 0
    clients[order[2]].decision = None
    grid = MemoryGrid({10 + k: clients[name] for k, name in enumerate(names)})
    grid.backwards = True
    _, watch = run(FedAvg(clients_per_round=2, seed=0), grid, 1)
    what = ["sat-out", "sat-out", "absent", "joined", "joined", "surplus"]
    assert watch.records[0].decisions == dict(zip(order, what, strict=True))


def six(order: list[str], delays: Delays) -> tuple[MemoryGrid, dict[str, int]]:
    names = [f"c{k}" for k in range(6)]
    nodes = {name: 10 + k for k, name in enumerate(names)}
    grid = MemoryGrid({nodes[name]: Volunteer(name) for name in names})
    return delayed(grid, delays), nodes


def ask_fewer(strategy: FedAvg, clients: int) -> None:
    rounds_of(strategy).setup.shared = shared_of(strategy).model_copy(update={"clients_per_round": clients})


def test_an_absent_client_has_as_long_to_answer_as_the_others_of_its_wave() -> None:
    order = [sampling_order(0, r, [f"c{k}" for k in range(6)]) for r in (1, 2)]
    nobody = [10 + k for k in range(6)]
    late = int(order[1][0][1:]) + 10
    # Everybody is asked in round 1, so that the first of round 2's order is the one who missed a deadline.
    grid, _ = six(order[1], {(late, 1): 61.0} | {(node, 2): 5.0 for node in nobody if node != late})
    strategy = FedAvg(round_timeout=60.0, evaluate_every=0, seed=0)
    watch = Watch(before={2: lambda: ask_fewer(strategy, 3)})
    _, watch = run(strategy, grid, 2, watch)
    assert became(watch.records, order[1][0]) == ["absent", "joined"]
    # It is back within the time that the other two of the wave take: nobody is asked in its place.
    assert len(grid.asked(2)) == 3


def test_where_all_of_a_wave_are_absent_the_next_is_asked_at_once() -> None:
    order = sampling_order(0, 2, [f"c{k}" for k in range(6)])
    silent = [int(name[1:]) + 10 for name in order[:2]]
    grid, _ = six(order, {(node, r): 1000.0 for node in silent for r in (1, 2)})
    strategy = FedAvg(round_timeout=60.0, evaluate_every=0, seed=0)
    watch = Watch(before={2: lambda: ask_fewer(strategy, 2)})
    _, watch = run(strategy, grid, 2, watch)
    what = ["absent", "absent", "joined", "joined", "surplus", "surplus"]
    assert watch.records[1].decisions == dict(zip(order, what, strict=True))
    assert watch.records[1].seconds < 1.0


def test_a_client_that_cannot_be_reached_is_absent() -> None:
    grid = trio()
    _, watch = run(FedAvg(), grid, 2, Watch(before={2: lambda: grid.unreachable.add(11)}))
    assert became(watch.records, "c1") == ["joined", "absent"]
    assert watch.records[1].failures == {"c1": NOT_SENT}


def test_a_client_that_is_offline_is_not_asked_and_comes_back() -> None:
    grid = trio()
    gone = grid.nodes[11]
    watch = Watch(before={2: lambda: grid.nodes.pop(11) and None, 3: lambda: grid.nodes.update({11: gone})})
    _, watch = run(FedAvg(), grid, 3, watch)
    assert became(watch.records, "c1") == ["joined", None, "joined"]
    assert [r.expected for r in watch.records] == [3, 2, 3]
    assert len(grid.sent("query")) == 3


def test_a_client_that_arrives_during_the_run_is_enrolled_and_asked() -> None:
    grid = trio()
    watch = Watch(before={2: lambda: grid.nodes.update({20: Volunteer("new")})})
    _, watch = run(FedAvg(min_clients=3), grid, 2, watch)
    assert became(watch.records, "new") == [None, "joined"]
    assert watch.enrolled == [("c0", 1), ("c1", 2), ("c2", 3), ("new", 4)]


def test_a_client_keeps_its_id_under_a_new_node_id() -> None:
    grid = trio()
    leaver, other = grid.nodes[11], grid.nodes[12]
    assert isinstance(leaver, Volunteer)
    leaver.decision = lambda told: -1 if told[keys.SERVER_ROUND] == 2 else 1

    def come_back() -> None:
        del grid.nodes[11], grid.nodes[12]
        grid.nodes.update({91: leaver, 92: other})

    _, watch = run(FedAvg(), grid, 3, Watch(before={3: come_back}))
    assert became(watch.records, "c1") == ["joined", "left", None]
    assert became(watch.records, "c2") == ["joined"] * 3
    assert sorted(grid.asked(3)) == [10, 92]
    assert watch.enrolled[-2:] == [("c1", 3), ("c2", 3)]
    assert watch.records[2].expected == 3


def test_a_client_that_raises_has_failed_with_its_reason() -> None:
    grid = trio()
    grid.nodes[11] = Volunteer("c1", decision=ValueError("disk full"))
    _, watch = run(FedAvg(), grid, 1)
    assert watch.records[0].failures == {"c1": "ValueError: disk full"}
    assert watch.records[0].as_line()["failures"] == {"c1": "ValueError: disk full"}
