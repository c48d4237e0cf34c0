"""What fedappeal.flower.grid.http_inbox relies on: Flower's HTTP grid, and Flower's SuperLink behind it."""

import time

import numpy as np
from flwr.app import Array
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects

from fedappeal.flower.grid.incoming import LONGEST_WAIT
from fedappeal.flower.messages import error_reply, is_from_superlink
from fedappeal.flower.node.objects import Parcel
from fedappeal.protocol import keys
from tests.flower.runtime_api import Node, World, joins
from tests.hostile.forged import Forged, forged, model, npy


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

    return list(get_all_nested_objects(node.message))


def test_an_error_reply_is_handed_over_once_its_client_has_sent_all(world: World) -> None:
    # Its object may come after the announcement was pulled; the SuperLink stores it only while it knows the reply.
    node = world.node()
    reply = error_reply("no memory", node.message)
    upload = node.fleet.push(node.node_id, Parcel.of(reply), 0.0)
    assert world.pull(node) == {}
    world.clock.now += LONGEST_WAIT
    node.fleet.push_objects(node.node_id, node.message.metadata.run_id, upload)
    (got,) = world.pull(node).values()
    assert (got.error.reason, is_from_superlink(got)) == ("no memory", False)
    assert world.api.calls["confirm-message-received"] == 1


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


def test_of_an_answer_that_becomes_late_while_it_comes_no_more_is_pulled(world: World) -> None:
    node = world.node()
    upload = node.announce(model(Array(np.ones(4, np.float32)).data))
    while len(upload.left) > 1:
        upload.push(1)
    assert world.pull(node) == {}
    asked = world.api.calls["pull-object"]
    world.clock.now += LONGEST_WAIT
    upload.push()
    (got,) = world.pull(unread=(node,)).values()
    assert got.has_content()
    assert not got.content
    assert world.api.calls["pull-object"] == asked + 1


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


def test_of_a_message_whose_time_is_over_the_superlink_keeps_nothing(world: World) -> None:
    node = world.node(ttl=0.2)
    store = world.server.states.objectstore_factory.store()
    assert node.id in store
    time.sleep(0.3)
    (got,) = world.pull(node).values()
    assert is_from_superlink(got)
    assert node.id not in store
