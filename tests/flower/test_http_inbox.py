"""What fedappeal.flower.http_inbox relies on: Flower's HTTP grid, and Flower's SuperLink behind it."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Error, Message, MetricRecord, RecordDict

from fedappeal.flower.grid import inbox_of
from fedappeal.flower.http_inbox import HttpInbox
from fedappeal.flower.incoming import LONGEST_WAIT
from fedappeal.flower.messages import be_client, be_server, error_reply, is_from_superlink
from fedappeal.protocol import keys
from fedappeal.protocol.allowance import Allowance
from tests.flower.conftest import Server
from tests.flower.runtime_api import RuntimeApi
from tests.hostile.forged import Forged, Upload, announce, content, forged, metrics, model, npy, reply

MIB = 1 << 20
SENT = ArrayRecord({"flat": Array(np.zeros(4, np.float32))})
ALLOWED = Allowance.of_models(SENT)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Node:
    """A client, and the message that it was sent."""

    fleet: object
    node_id: int
    message: Message
    id: str

    def forge(self, *children: Forged) -> None:
        self.announce(*children).push()

    def announce(self, *children: Forged) -> Upload:
        upload = announce(self.fleet, self.node_id, *reply(self.message, *children))
        assert not upload.refused
        return upload

    def answer(self, made: Message) -> None:
        upload = self.fleet.push(self.node_id, made, 0.0)  # type: ignore[attr-defined]
        self.fleet.push_objects(self.node_id, self.message.metadata.run_id, upload)  # type: ignore[attr-defined]


class World:
    """A run with some nodes, each of which has a message."""

    def __init__(self, server: Server) -> None:
        self.server, self.clock = server, Clock()
        self.run_id = server.start_run()
        self.api = RuntimeApi(server, self.run_id)
        self.grid = self.api.grid()
        inbox = inbox_of(self.grid)
        assert isinstance(inbox, HttpInbox)
        inbox._clock = self.clock
        self.inbox = inbox

    def node(self) -> Node:
        fleet, node_id = self.server.node()
        be_server(self.run_id, 1, 1)
        message = Message(RecordDict({keys.ARRAYS: SENT}), node_id, "train", ttl=60.0, group_id="1")
        sent = self.server.send(message)
        be_client(self.run_id, node_id, 1)
        return Node(fleet, node_id, message, sent)

    def pull(self, *nodes: Node, unread: tuple[Node, ...] = ()) -> dict[str, Message]:
        found = self.inbox.pull([n.id for n in nodes], ALLOWED, [n.id for n in unread])
        return {message.metadata.reply_to_message_id: message for message in found}


@pytest.fixture
def world(server: Server) -> Iterator[World]:
    yield World(server)


def joins(message: Message, value: float = 1.0) -> Message:
    arrays = ArrayRecord({"flat": Array(np.full(4, value, np.float32))})
    told = MetricRecord({keys.NUM_EXAMPLES: 100, keys.DECISION: 1})
    return Message(RecordDict({keys.ARRAYS: arrays, keys.METRICS: told}), reply_to=message)


def test_a_reply_comes_as_it_was_sent_with_no_more_requests_than_flowers_own(world: World) -> None:
    node, other = world.node(), world.node()
    node.answer(joins(node.message, 7.0))
    other.answer(joins(other.message, 8.0))
    (theirs,) = world.grid.pull_messages([other.id])
    asked = dict(world.api.calls)
    world.api.calls.clear()
    (ours,) = world.pull(node).values()
    assert world.api.calls == asked == {"pull-messages": 1, "pull-object": 6, "confirm-message-received": 1}
    assert ours.content[keys.METRICS] == theirs.content[keys.METRICS]
    assert ours.content[keys.ARRAYS]["flat"].numpy().tolist() == [7.0] * 4
    assert ours.metadata.src_node_id == node.node_id
    assert ours.metadata.message_type == theirs.metadata.message_type
    assert len(world.server.states.objectstore_factory.store()) == len(  # type: ignore[arg-type]
        set(_stored(node) + _stored(other))
    ), "what was handed over is forgotten"


def _stored(node: Node) -> list[str]:
    from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects

    return list(get_all_nested_objects(node.message))


def test_an_error_reply_takes_no_object(world: World) -> None:
    node = world.node()
    node.answer(error_reply("no memory", node.message))
    (got,) = world.pull(node).values()
    assert (got.error.reason, is_from_superlink(got)) == ("no memory", False)
    assert not world.api.calls["pull-object"]


def test_a_client_cannot_speak_for_the_superlink(world: World) -> None:
    node = world.node()
    node.answer(Message(Error(3, "unavailable"), reply_to=node.message))
    (got,) = world.pull(node).values()
    assert got.error.reason == "unavailable"
    assert not is_from_superlink(got)


def bomb() -> Forged:
    return model(bytes(256 * 1024), ids=[0] * 4096)


def garbage() -> Forged:
    return forged("RecordDict", b'{"arrays": \xff')


def absent_child() -> Forged:
    true = model(npy(4))
    return Forged(true.content)


def odd_numbers() -> Forged:
    return content(arrays=forged("ArrayRecord", b"[" * 5000 + b"]" * 5000))


FORGERIES: dict[str, tuple[Callable[[], Forged], str]] = {
    "garbage body": (garbage, "cannot be read: UnicodeDecodeError"),
    "wrong record": (lambda: forged("ArrayRecord", b"{}"), "cannot be read: MessageInitializationError"),
    "one level too deep": (lambda: content(a=content(b=model(npy(4)))), "nested more than 5 deep"),
    "thousands of records": (
        lambda: content(**{f"r{k}": metrics(k=k) for k in range(100)}),
        "more than the",
    ),
    "announces 600 MB": (lambda: model(npy(4), shape=(150_000_000,)), "announces 600000000"),
    "larger than announced": (lambda: model(bytes(3 * MIB)), "an object of its reply is too large: 31457"),
    "one chunk again and again": (bomb, "cannot be read: ValueError: an array of shape (4,) and dtype float32 is too"),
    "nested JSON": (odd_numbers, "cannot be read: RecursionError"),
    "missing parts": (absent_child, "cannot be read: KeyError"),
    "shape of texts": (lambda: model(npy(4), shape=("a",)), "cannot be read: ValueError"),  # type: ignore[arg-type]
    "negative shape": (lambda: model(npy(4), shape=(-4,)), ""),
}


@pytest.mark.parametrize("name", FORGERIES)
def test_whatever_is_wrong_with_a_reply_is_its_clients_error(world: World, name: str) -> None:
    make, reason = FORGERIES[name]
    node, honest = world.node(), world.node()
    node.forge(make())
    honest.answer(joins(honest.message))
    got = world.pull(node, honest)
    assert got[honest.id].has_content()
    if not reason:
        assert got[node.id].has_content(), "the checks of strategies find this"
        return
    assert reason in str(got[node.id].error.reason)
    assert not is_from_superlink(got[node.id])
    assert world.inbox._coming == {}


@pytest.mark.parametrize("announces", [True, False])
def test_of_an_object_that_is_too_large_no_more_is_read_than_is_allowed(world: World, announces: bool) -> None:
    node = world.node()
    node.forge(model(bytes(19 * MIB)))
    world.api.announces = announces
    (got,) = world.pull(node).values()
    assert "too large" in str(got.error.reason)
    assert world.api.read < (MIB // 4 if announces else 2 * MIB)


def test_a_root_that_is_no_message_is_its_clients_error(world: World) -> None:
    node = world.node()
    proto, _ = reply(node.message)
    announce(node.fleet, node.node_id, proto, model(npy(4))).push()
    (got,) = world.pull(node).values()
    assert "RecordDict came where a message was due" in str(got.error.reason)


def test_a_reply_that_names_another_client_is_of_the_node_that_sent_it(world: World) -> None:
    node, other = world.node(), world.node()
    proto, _ = reply(node.message)
    _, root = reply(other.message, model(npy(4)))
    announce(node.fleet, node.node_id, proto, root).push()
    (got,) = world.pull(node, other).values()
    assert (got.metadata.reply_to_message_id, got.metadata.src_node_id) == (node.id, node.node_id)


def test_objects_that_never_come_hold_up_no_other_reply(world: World) -> None:
    silent, honest = world.node(), world.node()
    silent.announce(model(npy(4)))
    honest.answer(joins(honest.message))
    assert list(world.pull(silent, honest)) == [honest.id]
    asked = world.api.calls["pull-object"]
    assert world.pull(silent) == {}
    assert world.api.calls["pull-object"] == asked, "not at once again"
    for _ in range(1000):
        world.clock.now += 0.2
        assert world.pull(silent) == {}
    assert world.api.calls["pull-object"] - asked < 250, f"at most one request in {LONGEST_WAIT} s"
    assert world.api.calls["pull-messages"] == 1, "the SuperLink hands a reply out once"


def test_a_reply_that_trickles_in_is_taken_as_it_comes(world: World) -> None:
    node = world.node()
    upload = node.announce(model(Array(np.ones(4, np.float32)).data))
    while len(upload.left) > 1:
        upload.push(1)
        assert world.pull(node) == {}
        world.clock.now += LONGEST_WAIT
    upload.push()
    (got,) = world.pull(node).values()
    assert got.content[keys.ARRAYS]["flat"].numpy().tolist() == [1.0] * 4


def test_of_an_answer_that_is_late_only_the_fact_is_pulled(world: World) -> None:
    node = world.node()
    node.answer(joins(node.message))
    (got,) = world.pull(unread=(node,)).values()
    assert got.has_content()
    assert not got.content
    assert world.api.calls["pull-object"] == 1


def deep(end: Forged) -> Forged:
    for _ in range(60):
        end = forged("RecordDict", b"{}", end)
    return end


def test_a_reply_that_cannot_be_unpacked_costs_the_others_one_poll_at_most(world: World) -> None:
    # Each announcement is 62 deep, which Flower's SuperLink admits; it looks up the rest of the second one.
    first, second, honest, later = nodes = [world.node() for _ in range(4)]
    half = deep(forged("ArrayChunk", b"end"))
    first.forge(half)
    second.forge(deep(Forged(half.content)))
    honest.answer(joins(honest.message))
    assert world.pull(*nodes) == {}
    later.answer(joins(later.message))
    got = world.pull(*nodes)
    assert got[later.id].has_content()
    assert is_from_superlink(got[honest.id]), "it was lost with that request"
    third, fourth, honest = (world.node() for _ in range(3))
    third.forge(half)
    fourth.forge(deep(Forged(half.content)))
    honest.answer(joins(honest.message))
    got = world.pull(third, fourth, honest)
    assert "nested more than 5 deep" in str(got[third.id].error.reason)
    assert "cannot hand over its reply: HTTP 500" in str(got[fourth.id].error.reason)
    assert got[honest.id].has_content()
