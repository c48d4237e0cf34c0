"""What fedappeal.flower.node.objects relies on: Flower's tree of objects, taken apart and built again."""

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict

from fedappeal.flower import messages
from fedappeal.flower.node.fleet import MessageDropped
from fedappeal.flower.node.objects import Parcel, announcement, inflate


def message() -> Message:
    messages.be_sender(7, 1, 9)
    content = {"arrays": ArrayRecord({"w": Array(np.arange(5.0))}), "config": ConfigRecord({"server-round": 3})}
    return Message(RecordDict(content), 5, "train", ttl=60.0, group_id="3")


def test_a_message_taken_apart_is_the_same_when_built_again() -> None:
    sent = message()
    parcel = Parcel.of(sent)
    announced = announcement(parcel.message, parcel.tree)
    assert (announced.about.metadata.message_type, announced.about.metadata.run_id, announced.about.metadata.ttl) == (
        "train",
        7,
        60.0,
    )
    assert announced.about.metadata.created_at == pytest.approx(sent.metadata.created_at)
    assert announced.object_id == sent.object_id == sent.metadata.message_id
    # In all: Message, RecordDict, ConfigRecord, ArrayRecord, Array, chunk.
    assert len(announced.parts) == 5
    contents = parcel.contents({announced.object_id, *announced.parts})
    built = inflate(announced.object_id, contents)
    assert built.metadata.message_id == announced.object_id
    assert built.metadata.group_id == "3"
    assert built.content["config"] == sent.content["config"]
    np.testing.assert_array_equal(built.content["arrays"]["w"].numpy(), np.arange(5.0))
    assert not any(held.startswith(b"ArrayChunk") for held in contents.values()), "what is built is let go of"


def test_children_come_before_parents() -> None:
    parcel = Parcel.of(message())
    announced = announcement(parcel.message, parcel.tree)
    before: set[str] = set()
    for object_id in (*announced.parts, announced.object_id):
        children = parcel.objects[object_id].children or {}
        assert {child.object_id for child in children.values()} <= before
        before.add(object_id)


def test_only_what_is_wanted_is_made_into_bytes() -> None:
    parcel = Parcel.of(message())
    wanted = announcement(parcel.message, parcel.tree).parts[0]
    assert set(parcel.contents({wanted})) == {wanted}


def test_an_object_that_is_no_message_is_dropped() -> None:
    record = ConfigRecord({"a": 1})
    with pytest.raises(MessageDropped, match="an object of type ConfigRecord came where a message was due"):
        inflate(record.object_id, {record.object_id: record.deflate()})
