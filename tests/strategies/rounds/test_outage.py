"""Outages: a round waits while nobody is online, and the SuperLink's word is not taken for a client's."""

from collections.abc import Callable

import pytest
from flwr.app import Error, Message, MessageType, RecordDict
from flwr.common.constant import ErrorCode
from flwr.server.superlink.linkstate.utils import MESSAGE_UNAVAILABLE_ERROR_REASON, NODE_UNAVAILABLE_ERROR_REASON

from fedappeal.protocol import keys
from strategies import FedAvg
from strategies.rounds.exchange.exchange import _LATE_AT_ONCE, Channel, Exchange
from strategies.rounds.exchange.members import Member
from strategies.rounds.exchange.replies import NO_ANSWER
from strategies.rounds.round import RoundRecord
from tests.grid import Handler, MemoryGrid, Volunteer, Watch, model, run

FROM_SUPERLINK = [ErrorCode.MESSAGE_UNAVAILABLE, ErrorCode.REPLY_MESSAGE_UNAVAILABLE, ErrorCode.NODE_UNAVAILABLE]
FROM_CLIENT = [
    *(ErrorCode.UNKNOWN, ErrorCode.LOAD_CLIENT_APP_EXCEPTION, ErrorCode.CLIENT_APP_RAISED_EXCEPTION),
    *(ErrorCode.MOD_FAILED_PRECONDITION, ErrorCode.INVALID_FAB, ErrorCode.CLIENT_APP_CRASHED),
]


def trio() -> MemoryGrid:
    return MemoryGrid({10 + k: Volunteer(f"c{k}") for k in range(3)})


def when(grid: MemoryGrid, time: float, act: Callable[[], object]) -> None:
    """Do something once the grid's clock has reached a time."""
    sleep, done = grid.clock.sleep, []

    def until(seconds: float) -> None:
        sleep(seconds)
        if grid.clock() >= time and not done:
            done.append(act())

    grid.clock.sleep = until  # type: ignore[method-assign]


@pytest.mark.parametrize(("returns", "joined", "seconds"), [(40.0, [3, 1, 3], 40.0), (1000.0, [3, 0, 0], 60.0)])
def test_an_outage_of_all_is_waited_for_up_to_one_deadline(returns: float, joined: list[int], seconds: float) -> None:
    grid = trio()
    away = dict(grid.nodes)
    when(grid, returns, lambda: grid.nodes.update({11: away[11]}))  # one of them is enough to go on with
    watch = Watch(before={2: grid.nodes.clear, 3: lambda: grid.nodes and grid.nodes.update(away)})
    _, watch = run(FedAvg(round_timeout=60.0), grid, 3, watch)
    assert [r.count("joined") for r in watch.records] == joined
    assert [watch.records[0].seconds, watch.records[1].seconds] == pytest.approx([0, seconds], abs=0.5)
    assert watch.models[1] == ([2.0] if joined[1] else watch.models[0])
    assert [r.expected for r in watch.records] == joined


def test_an_outage_does_not_make_the_next_round_mandatory() -> None:
    grid = trio()
    away = dict(grid.nodes)
    when(grid, 40.0, lambda: grid.nodes.update(away))
    _, watch = run(FedAvg(mandatory_rounds=1), grid, 3, Watch(before={2: grid.nodes.clear}))
    assert [r.mandatory for r in watch.records] == [True, False, False]


def test_nobody_is_waited_for_where_all_have_left_for_good() -> None:
    grid = trio()
    for client in grid.nodes.values():
        client.decision = lambda told: -1 if told[keys.SERVER_ROUND] == 2 else 1  # type: ignore[attr-defined]
    _, watch = run(FedAvg(round_timeout=60.0), grid, 5, Watch(before={4: grid.nodes.clear}))
    assert [r.count("left") for r in watch.records] == [0, 3, 0, 0, 0]
    assert grid.clock() < 1.0
    assert not grid.sent("train", 3)


def test_unseen_clients_do_not_end_an_outage() -> None:
    grid = trio()
    away = dict(grid.nodes)
    when(grid, 40.0, lambda: grid.nodes.update(away))

    def lose() -> None:
        grid.nodes.clear()
        grid.nodes[20] = Volunteer("u", role=keys.UNSEEN)

    _, watch = run(FedAvg(round_timeout=60.0), grid, 2, Watch(before={2: lose}))
    assert watch.enrolled[-1] == ("u", 4)
    assert [r.count("joined") for r in watch.records] == [3, 3]
    assert watch.records[1].seconds == pytest.approx(40.0, abs=0.5)


def answering(code: int, server_round: int, name: str, reason: str = "not now") -> Handler:
    """A client in whose place an error comes in one round."""
    volunteer = Volunteer(name)

    def answer(message: Message) -> Message | None:
        if message.metadata.message_type == "train" and message.metadata.group_id == str(server_round):
            return Message(Error(code, reason), reply_to=message)
        return volunteer(message)

    return answer


@pytest.mark.parametrize("code", FROM_SUPERLINK + FROM_CLIENT)
def test_only_the_clients_own_reply_ends_an_absence(code: int) -> None:
    # c2 misses round 1; an error comes for round 2; in round 3 it needs 30 s, and is waited for if it is back.
    grid = trio()
    grid.nodes[12] = answering(code, 2, "c2")
    delays = {("train", "1"): 1000.0, ("train", "3"): 30.0}

    def delay(node: int, message: Message) -> float:
        what = (message.metadata.message_type, message.metadata.group_id)
        return delays.get(what, 0.0) if node == 12 else 0.0

    grid.delay = delay
    _, watch = run(FedAvg(round_timeout=60.0, evaluate_every=0), grid, 3)
    back = code in FROM_CLIENT
    became = [record.decisions["c2"] for record in watch.records]
    assert became == (["absent", "failed", "joined"] if back else ["absent"] * 3)
    assert [(line["absent"], line["failed"]) for line in (record.as_line() for record in watch.records)] == (
        [(1, 0), (0, 1), (0, 0)] if back else [(1, 0)] * 3
    )
    assert watch.records[1].failures == {"c2": "not now"}
    assert watch.records[2].seconds == pytest.approx(30.0 if back else 0.0, abs=0.5)


class Late:
    """An exchange in which ten clients missed the deadline, and what is pulled afterwards."""

    def __init__(self, answer: Handler) -> None:
        self.members = [Member(f"c{k}", 10 + k) for k in range(10)]
        self.grid = MemoryGrid({10 + k: answer for k in range(10)} | {99: lambda message: None})
        self.grid.delay = lambda node, message: 70.0
        self.channel = Channel(self.grid, clock=self.grid.clock, sleep=self.grid.clock.sleep)
        self.exchange(self.members, 60.0)
        self.ids = list(self.channel.late)
        self.pulls: list[list[str]] = []
        pull = self.grid.pull_messages

        def counted(ids: list[str]) -> list[Message]:
            self.pulls.append(list(ids))
            return list(pull(ids))

        self.grid.pull_messages = counted  # type: ignore[assignment, method-assign]

    def exchange(self, members: list[Member], deadline: float) -> None:
        exchange = Exchange(self.channel, RoundRecord(1), deadline, MessageType.TRAIN)
        wave = [(m, Message(RecordDict({keys.ARRAYS: model(0)}), m.node_id, "train")) for m in members]
        exchange.run(iter([wave]), lambda member, message: None)

    def wait_for_another(self, until: float) -> None:
        self.exchange([Member("other", 99)], until)


def test_late_answers_are_asked_for_in_turn_a_few_at_a_time() -> None:
    late = Late(lambda message: None)
    assert late.channel.absent == {m.client_id for m in late.members}
    late.wait_for_another(62.0)
    asked = [[i for i in pull if i in late.ids] for pull in late.pulls]
    assert len(asked) >= 5
    assert {len(ids) for ids in asked} == {_LATE_AT_ONCE}
    turn = [i for ids in asked for i in ids]
    assert turn[:20] == 2 * late.ids


def test_each_late_answer_ends_one_absence_and_is_asked_for_no_more() -> None:
    late = Late(Volunteer("any"))
    late.wait_for_another(80.0)
    assert late.channel.absent == {"other"}
    last = late.pulls[-1]
    assert not set(last) & set(late.ids)


@pytest.mark.parametrize("code", FROM_SUPERLINK)
def test_the_superlinks_word_on_a_late_message_ends_no_absence_but_the_asking(code: int) -> None:
    late = Late(lambda message: Message(Error(code, "expired"), reply_to=message))
    late.wait_for_another(80.0)
    assert late.channel.absent == {m.client_id for m in late.members} | {"other"}
    assert not set(late.pulls[-1]) & set(late.ids)


def test_what_flower_says_of_an_expired_message_is_said_in_our_words() -> None:
    grid = trio()
    for node, reason in ((10, MESSAGE_UNAVAILABLE_ERROR_REASON), (11, NODE_UNAVAILABLE_ERROR_REASON), (12, "other")):
        grid.nodes[node] = answering(ErrorCode.MESSAGE_UNAVAILABLE, 1, f"c{node - 10}", reason)
    _, watch = run(FedAvg(evaluate_every=0), grid, 1)
    assert watch.records[0].failures == {"c0": NO_ANSWER, "c1": NO_ANSWER, "c2": "other"}


def test_a_message_that_expires_with_its_deadline_was_a_missed_deadline() -> None:
    # The SuperLink says of c2's message that it has expired, a moment before the exchange itself is over.
    grid = trio()
    grid.nodes[12] = answering(ErrorCode.MESSAGE_UNAVAILABLE, 1, "c2")
    grid.delay = lambda node, message: 59.5 if (node, message.metadata.group_id) == (12, "1") else 0.0
    first = grid.nodes[12]
    grid.nodes[12] = lambda message: first(message) if message.metadata.group_id in ("0", "1") else None
    _, watch = run(FedAvg(round_timeout=60.0, evaluate_every=0), grid, 2)
    assert watch.records[0].failures == {"c2": "not now"}
    assert watch.records[1].seconds < 1.0
