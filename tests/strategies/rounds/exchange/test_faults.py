"""An error that no check foresaw concerns one reply; where every reply meets one, the strategy is at fault."""

from typing import Any

import pytest
from flwr.app import Message

from strategies import FedAvg
from strategies.rounds.algorithm import Survey
from strategies.rounds.round import Reply, Round
from tests.grid import MemoryGrid, Volunteer, Watch, run


class Fragile(FedAvg):
    """Raises for the replies of some clients."""

    name = "fragile"
    breaks: tuple[str, ...] = ()
    error: Exception = KeyError("line 1\nline 2\x1b[31m")

    def add(self, round: Round, reply: Reply) -> None:
        if reply.member.client_id in self.breaks:
            raise self.error
        super().add(round, reply)


def clients(count: int, **decisions: Any) -> MemoryGrid:
    return MemoryGrid(
        {10 + k: Volunteer(f"c{k}", local=float(2**k), decision=decisions.get(f"c{k}", 1)) for k in range(count)}
    )


def rounds_of(grid: MemoryGrid, *breaks: str) -> Watch:
    strategy = Fragile(evaluate_every=0)
    strategy.breaks = breaks
    return run(strategy, grid, 2)[1]


def test_the_client_has_failed_with_a_reason_in_one_line_and_the_round_goes_on() -> None:
    watch = rounds_of(clients(4), "c1", "c2")
    for record in watch.records:
        assert record.decisions == {"c0": "joined", "c1": "failed", "c2": "failed", "c3": "joined"}
        assert record.failures["c1"] == "its reply cannot be used: KeyError: 'line 1\\nline 2\\x1b[31m'"
    assert watch.models[0] == [4.5]


def test_no_one_client_ends_a_run_in_which_the_others_sit_out() -> None:
    watch = rounds_of(clients(3, c0=0, c1=0), "c2")
    assert [record.decisions["c2"] for record in watch.records] == ["failed"] * 2


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_where_it_fails_for_every_client_the_strategy_is_at_fault(count: int) -> None:
    with pytest.raises(KeyError):
        rounds_of(clients(count), *(f"c{k}" for k in range(count)))


def test_an_answer_to_a_survey_concerns_its_client() -> None:
    class Failing(Survey):
        def answered(self, round: Round, member: Any, metrics: Any) -> None:
            if member.client_id == "c1":
                raise ZeroDivisionError("by it")

    class Surveys(FedAvg):
        name = "surveys"
        survey = Failing

    _, watch = run(Surveys(evaluate_every=0), clients(3), 1)
    assert watch.records[0].failures == {"c1": "survey: its reply cannot be used: ZeroDivisionError: by it"}
    assert watch.records[0].count("joined") == 3


def test_a_model_that_cannot_be_read_is_one_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    grid = clients(3)
    honest = grid.nodes[11]

    def odd(message: Message) -> Message | None:
        reply = honest(message)
        if reply is not None and message.metadata.message_type == "train":
            reply.content["arrays"]["w"].data = b"\x93NUMPY\x01\x00\xff\xff" + b"(" * 9000
        return reply

    grid.nodes[11] = odd
    _, watch = run(FedAvg(evaluate_every=0), grid, 1)
    assert "array 'w': array has an unreadable header" in watch.records[0].failures["c1"]
    assert watch.records[0].count("joined") == 2


def test_three_of_many_are_enough_where_the_others_sit_out() -> None:
    with pytest.raises(KeyError):
        rounds_of(clients(5, c0=0, c1=0), "c2", "c3", "c4")
