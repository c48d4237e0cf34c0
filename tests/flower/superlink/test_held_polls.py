"""Held polls over both transports, and what they rely on: how Flower stores a message."""

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from flwr.app import Message, MetricRecord, RecordDict
from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.common.serde import message_from_proto
from flwr.proto.fleet_pb2 import PullMessagesResponse

from fedappeal.flower.messages import be_sender, error_reply
from fedappeal.flower.node import fleet_api
from fedappeal.flower.node.fleet import Announcement, MessageDropped, NodeForgotten, NotAnswering
from fedappeal.flower.node.fleet_api import FleetApi
from fedappeal.flower.node.objects import Parcel
from fedappeal.flower.superlink import guarded_fleet, held_polls
from fedappeal.flower.superlink.guarded_fleet import flower, guard_fleet_api
from fedappeal.flower.superlink.held_polls import HeldPolls
from fedappeal.flower.superlink.held_polls import Poll as HeldPoll
from tests.flower.conftest import Server, app_of, serve, serve_app, states_of_a_superlink
from tests.silent_router import silent_router

HOLD = 20.0


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[HeldPolls]:
    """What `guard_fleet_api` makes, with two places; what it replaces is put back after the test."""
    found: list[HeldPolls] = []
    for name in ("FleetServicer", "generic_create_grpc_server", "GRPC_MAX_MESSAGE_LENGTH"):
        monkeypatch.setattr(flower, name, getattr(flower, name))
    monkeypatch.setattr(guarded_fleet, "HeldPolls", lambda: found.append(HeldPolls(most=2)) or found[0])
    return found


@pytest.fixture(params=["grpc", "http"])
def holding(request: pytest.FixtureRequest, made: list[HeldPolls]) -> Iterator[Server]:
    """A Fleet API that holds polls: over gRPC made by Flower's own function, or ours over HTTP."""
    if request.param == "grpc":
        guard_fleet_api()
        yield from serve(run=flower._run_fleet_api_grpc_rere)
    else:
        made.append(HeldPolls(most=2))
        states = states_of_a_superlink()
        yield from serve_app(app_of(states, made[0]), states)


@pytest.fixture
def polls(holding: Server, made: list[HeldPolls]) -> HeldPolls:
    return made[0]


class Poll:
    """A poll in a thread of its own."""

    def __init__(self, fleet: FleetApi, node: int, hold: float = HOLD) -> None:
        self.result: Announcement | Exception | None = None
        self.waits, self.seconds = True, 0.0
        self._thread = threading.Thread(target=self._run, args=(fleet, node, hold))
        self._thread.start()

    def _run(self, fleet: FleetApi, node: int, hold: float) -> None:
        began = time.monotonic()
        try:
            self.result = fleet.pull(node, hold, lambda: self.waits)
        except Exception as error:
            self.result = error
        self.seconds = time.monotonic() - began

    @property
    def open(self) -> bool:
        return self._thread.is_alive()

    def end(self) -> Any:
        self._thread.join(10)
        assert not self.open, "the poll was never answered"
        return self.result


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end, "it never came to that"
        time.sleep(0.005)


def message(run_id: int, node: int) -> Message:
    be_sender(run_id, SUPERLINK_NODE_ID, 1)
    return Message(RecordDict({"metrics": MetricRecord({"loss": 1.0})}), node, "train", ttl=60.0)


def test_a_poll_is_answered_when_a_message_is_complete(holding: Server, polls: HeldPolls) -> None:
    fleet, node = holding.node()
    run_id = holding.start_run()
    poll = Poll(fleet, node)
    until(lambda: polls.held == 1)
    parcel = Parcel.of(message(run_id, node))
    session, state = holding.state.start_session(run_id), holding.state
    *parts, root = parcel.contents(set(parcel.objects)).items()
    assert root[0] == parcel.tree.object_id, "the message's own object is the last"
    stored, missing = state.store_message_and_object_tree(message_from_proto(parcel.message), parcel.tree, session)
    assert stored
    assert sorted(missing) == sorted(parcel.objects)
    for part in parts:
        assert state.store_object(run_id, session, *part)
    time.sleep(0.2)
    assert poll.open, "a message that is not complete wakes no client"
    assert state.store_object(run_id, session, *root)
    assert poll.end().object_id == root[0]
    assert polls.held == 0


def test_a_message_that_is_not_complete_is_handed_to_whoever_asks(holding: Server, polls: HeldPolls) -> None:
    """A ServerApp that was killed in the middle of a push keeps nothing of the next run's from the node."""
    fleet, node = holding.node()
    first, second = holding.start_run(), holding.start_run()
    poll = Poll(fleet, node, hold=0.5)
    until(lambda: polls.held == 1)
    partial = holding.send(message(first, node), held_back=1)
    assert poll.end().object_id == partial, "in the end, too"
    fleet.confirm(node, first, partial)
    sent = holding.send(message(second, node))
    got = fleet.pull(node, HOLD)
    assert got is not None
    assert got.object_id == sent


def test_a_message_that_is_there_is_handed_out_at_once_and_without_the_header_nothing_is_held(
    holding: Server, polls: HeldPolls
) -> None:
    fleet, node = holding.node()
    run_id = holding.start_run()
    sent = holding.send(message(run_id, node))
    got = fleet.pull(node, HOLD)
    assert got is not None
    assert got.object_id == sent
    fleet.confirm(node, run_id, sent)
    assert fleet.pull(node) is None
    assert polls.held == 0


def test_a_poll_ends_empty_with_its_time_or_with_its_client(holding: Server, polls: HeldPolls) -> None:
    fleet, node = holding.node()
    poll = Poll(fleet, node, hold=0.5)
    assert poll.end() is None
    assert poll.seconds >= 0.5
    left = Poll(fleet, node)
    until(lambda: polls.held == 1)
    left.waits = False
    assert left.end() is None
    until(lambda: polls.held == 0)


def test_a_message_that_was_handed_to_a_lost_client_is_handed_out_once_more(holding: Server) -> None:
    fleet, node = holding.node()
    run_id = holding.start_run()
    sent = holding.send(message(run_id, node))
    first, second = fleet.pull(node, HOLD), fleet.pull(node, HOLD)
    assert first is not None
    assert second is not None
    assert first.object_id == second.object_id == sent
    assert fleet.pull(node, 0.3) is None, "once, and not again and again"


def test_a_message_that_was_pulled_or_answered_is_not_handed_out_again(holding: Server) -> None:
    fleet, node = holding.node()
    run_id = holding.start_run()
    first = holding.send(message(run_id, node))
    assert fleet.pull(node, HOLD) is not None
    fleet.pull_objects(node, run_id, [first])
    assert fleet.pull(node, 0.3) is None
    second = message(run_id, node)
    holding.send(second)
    assert fleet.pull(node, HOLD) is not None
    be_sender(run_id, node, 1)
    fleet.push(node, Parcel.of(error_reply("no memory", second)), 0.0)
    assert fleet.pull(node, 0.3) is None


def test_connections_that_a_router_has_forgotten_are_replaced(
    holding: Server, polls: HeldPolls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet_api, "_HEARTBEAT_TIMEOUT", 0.5)
    with silent_router(holding.address) as router:
        holding.address = router.address
        fleet, node = holding.node()
        run_id = holding.start_run()
        poll = Poll(fleet, node)
        until(lambda: polls.held == 1)
        assert fleet.heartbeat(node, 10.0)
        router.forget()
        with pytest.raises(NotAnswering):
            fleet.heartbeat(node, 10.0)
        assert isinstance(poll.end(), NotAnswering)
        assert fleet.heartbeat(node, 10.0)
        again = Poll(fleet, node)
        holding.send(message(run_id, node))
        assert isinstance(again.end(), Announcement)


def test_a_node_has_one_poll_and_all_have_a_bounded_number(holding: Server, polls: HeldPolls) -> None:
    nodes = [holding.node() for _ in range(3)]
    first = Poll(*nodes[0])
    until(lambda: polls.held == 1)
    again = Poll(*nodes[0])
    assert first.end() is None, "the later poll of a node takes the place of the earlier one"
    other = Poll(*nodes[1])
    until(lambda: polls.held == 2)
    began = time.monotonic()
    assert nodes[2][0].pull(nodes[2][1], HOLD) is None, "no place is left: answered at once"
    assert time.monotonic() - began < HOLD / 2
    for poll in (again, other):
        assert poll.open
        poll.waits = False
        poll.end()


def test_many_held_polls_take_no_thread_each(holding: Server, polls: HeldPolls) -> None:
    polls._most = 100
    before = set(threading.enumerate())
    nodes = [holding.node() for _ in range(40)]
    waiting: list[Poll] = []
    for fleet, node in nodes:
        waiting.append(Poll(fleet, node))
        until(lambda: polls.held == len(waiting))
    servers = ("ThreadPoolExecutor", "held-polls", "fleet-http")
    workers = [thread for thread in set(threading.enumerate()) - before if thread.name.startswith(servers)]
    assert len(workers) < 30, "the clients' own threads apart"
    run_id = holding.start_run()
    sent = holding.send(message(run_id, nodes[7][1]))
    assert waiting[7].end().object_id == sent
    for poll in waiting:
        poll.waits = False
    until(lambda: polls.held == 0)


def test_what_refuses_a_node_ends_its_held_poll_too(holding: Server, polls: HeldPolls) -> None:
    fleet, node = holding.node()
    poll = Poll(fleet, node)
    until(lambda: polls.held == 1)
    fleet.unregister(node, 5.0)
    polls._wake(node)
    assert isinstance(poll.end(), NodeForgotten)
    assert polls.held == 0


def test_a_node_cannot_ask_in_the_place_of_another(holding: Server, polls: HeldPolls) -> None:
    fleet, node = holding.node()
    other, _ = holding.node()
    run_id = holding.start_run()
    poll = Poll(fleet, node)
    until(lambda: polls.held == 1)
    with pytest.raises(NodeForgotten):
        other.pull(node, HOLD)
    assert poll.open, "its question still stands"
    sent = holding.send(message(run_id, node))
    assert poll.end().object_id == sent
    for call in (lambda: other.pull(node, HOLD), lambda: other.pull_objects(node, run_id, [sent])):
        with pytest.raises(NodeForgotten):
            call()
    again = fleet.pull(node, HOLD)
    assert again is not None, "nor has it taken the message that may be handed out once more"
    assert again.object_id == sent


def test_a_message_is_not_forgotten_at_its_nodes_word_while_it_is_on_its_way(
    holding: Server, polls: HeldPolls
) -> None:
    fleet, node = holding.node()
    run_id = holding.start_run()
    parcel = Parcel.of(message(run_id, node))
    session, state = holding.state.start_session(run_id), holding.state
    _, missing = state.store_message_and_object_tree(message_from_proto(parcel.message), parcel.tree, session)
    early = fleet.pull(node)
    assert early is not None, "a poll without the header is answered at once"
    fleet.confirm(node, run_id, early.object_id)
    for part in parcel.contents(set(missing)).items():
        assert state.store_object(run_id, session, *part)
    ids = [*early.parts, early.object_id]
    assert fleet.pull_objects(node, run_id, ids).keys() == set(ids)
    fleet.confirm(node, run_id, early.object_id)
    with pytest.raises(MessageDropped):
        fleet.pull_objects(node, run_id, ids)


def test_messages_of_killed_serverapps_are_remembered_up_to_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_polls, "_MOST_COMING", 2)
    polls = HeldPolls()
    for root in ("one", "two", "two", "three"):
        polls._announced(1, root, complete=False)
    assert [polls.is_coming(root) for root in ("one", "two", "three")] == [False, True, True]


def test_a_message_that_a_replaced_poll_takes_goes_to_the_one_in_its_place(
    holding: Server, polls: HeldPolls, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet, node = holding.node()
    run_id = holding.start_run()
    taken, go_on, find = threading.Event(), threading.Event(), holding.state.get_message_ins

    def slow(*given: Any, **named: Any) -> Any:
        found = find(*given, **named)
        if found:
            taken.set()
            assert go_on.wait(10)
        return found

    monkeypatch.setattr(holding.state, "get_message_ins", slow)
    first = Poll(fleet, node)
    until(lambda: polls.held == 1)
    replaced = polls._held[node]
    sent = holding.send(message(run_id, node))
    assert taken.wait(10)
    second = Poll(fleet, node)
    until(lambda: polls._held.get(node) not in (None, replaced) and not polls._held[node].asking)
    go_on.set()
    assert second.end().object_id == sent
    assert second.seconds < HOLD / 2
    first.end()


def test_what_comes_while_a_node_asks_is_asked_for_again() -> None:
    """Of its poll that is held, and of one that has no place yet; of no other node's, and of none that waits."""
    polls = HeldPolls()

    def held(node: int, asking: bool) -> HeldPoll:
        return HeldPoll(node, 0.0, PullMessagesResponse, lambda _: None, lambda: True, asking)

    starting, others, waiting, place = held(1, True), held(2, True), held(1, False), held(1, True)
    polls._starting |= {starting, others, waiting}
    polls._held[1] = place
    polls._wake(1)
    assert [one.again for one in (starting, others, waiting, place)] == [True, False, False, True]


def test_a_message_that_needs_no_objects_wakes_its_node_and_no_other() -> None:
    """All of its objects may be stored already: of another message with the same content."""
    polls, asked = HeldPolls(), list[int]()
    for node in (1, 2):
        poll = HeldPoll(node, time.monotonic() + HOLD, PullMessagesResponse, lambda _: None, lambda: True)
        polls.hold(poll)
        poll.ask = lambda node=node: asked.append(node) or PullMessagesResponse()  # type: ignore[misc, func-returns-value]
    polls._announced(1, "root", complete=True)
    until(lambda: bool(asked))
    assert asked == [1]


def test_a_poll_whose_client_is_gone_before_it_has_a_place_is_not_held() -> None:
    polls = HeldPolls()
    polls.hold(HeldPoll(1, time.monotonic() + HOLD, PullMessagesResponse, lambda _: None, lambda: False))
    assert polls.held == 0


def test_a_replaced_poll_that_gets_nothing_leaves_the_one_in_its_place_alone() -> None:
    polls, asked = HeldPolls(), list[str]()

    def held(name: str) -> HeldPoll:
        def ask() -> PullMessagesResponse:
            asked.append(name)
            return PullMessagesResponse()

        return HeldPoll(1, time.monotonic() + HOLD, ask, lambda _: None, lambda: True)

    first = held("first")
    polls.hold(first)
    polls.hold(held("second"))
    polls._ask_again(first)
    polls._threads.shutdown()
    assert asked == ["first", "second", "first"]
