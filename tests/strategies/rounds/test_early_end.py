"""A strategy that ends its run before the last round: `finished`."""

import pytest
from flwr.app import ArrayRecord

from fedappeal.protocol import keys
from strategies import FedAvg
from strategies.rounds.exchange.roll_call import RollCallError
from strategies.rounds.round import Round
from strategies.rounds.strategy import rounds_of
from tests.grid import MemoryGrid, Volunteer, Watch, model, run, values_of


class Until(FedAvg):
    """Is done once a number of rounds has been concluded."""

    def __init__(self, last: int, **shared: object) -> None:
        super().__init__(**shared)  # type: ignore[arg-type]
        self.last = last

    def finish(self, round: Round) -> ArrayRecord | None:
        if round.number == self.last:
            round.end = "every client is satisfied"
        return super().finish(round)


def trio() -> MemoryGrid:
    return MemoryGrid({10 + k: Volunteer(f"c{k}", evaluation={"accuracy": 0.5}) for k in range(3)})


@pytest.mark.parametrize(("every", "evaluated"), [(0, [3]), (1, [1, 2, 3]), (2, [2, 3])])
def test_the_run_ends_after_that_round_and_is_evaluated_as_at_its_end(every: int, evaluated: list[int]) -> None:
    grid = trio()
    result, watch = run(Until(3, evaluate_every=every), grid, 10)
    assert [r.server_round for r in watch.records] == [1, 2, 3]
    assert watch.models == [[1.0], [2.0], [3.0]]
    assert values_of(result.arrays) == [3.0]
    assert list(result.evaluate_metrics_clientapp) == evaluated
    asked = grid.sent("evaluate")
    assert [int(m.metadata.group_id) for m in asked] == [r for r in evaluated for _ in range(3)]
    finals = [m.content.config_records[keys.CONFIG][keys.FINAL] for m in asked]
    assert finals == [0] * (3 * len(evaluated) - 3) + [1] * 3
    assert "accuracy" in watch.records[-1].metrics


def test_a_run_that_ends_in_its_last_round_is_evaluated_once() -> None:
    grid = trio()
    _, watch = run(Until(2, evaluate_every=0), grid, 2)
    assert len(watch.records) == 2
    assert len(grid.sent("evaluate")) == 3


def test_a_finished_run_is_carried_over_and_does_not_start_again() -> None:
    first = Until(2)
    run(first, trio(), 10)
    second = Until(99)
    assert rounds_of(second).finished == ""
    rounds_of(second).restore(rounds_of(first).state())
    assert rounds_of(second).finished == "every client is satisfied"
    # Nobody is online any more, and nobody is waited for: all that could be done has been done.
    grid = MemoryGrid()
    result, watch = run(second, grid, 10, arrays=model(7), first_round=3)
    assert values_of(result.arrays) == [7.0]
    assert watch.records == []
    assert grid.pushed == []
    assert grid.clock() == 0.0
    assert rounds_of(second).state().config_records["volunteers"]["finished"] == "every client is satisfied"


def test_a_run_without_rounds_left_waits_for_nobody() -> None:
    grid = MemoryGrid()
    result, watch = run(FedAvg(), grid, 5, arrays=model(7), first_round=6)
    assert values_of(result.arrays) == [7.0]
    assert watch.records == []
    assert grid.clock() == 0.0


def test_a_run_with_rounds_left_still_waits() -> None:
    with pytest.raises(RollCallError):
        run(FedAvg(start_timeout=20.0), MemoryGrid(), 5, Watch(), arrays=model(7), first_round=5)
