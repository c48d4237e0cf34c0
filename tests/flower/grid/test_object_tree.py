"""What fedappeal.flower.grid.assembly relies on: the tree of a Flower message."""

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict

from fedappeal.flower.grid.assembly import DEEPEST, TreeRefused, levels
from fedappeal.flower.messages import be_sender
from fedappeal.flower.node.objects import Parcel
from tests.hostile.forged import Forged, forged


def test_a_message_of_flowers_is_as_deep_as_is_allowed() -> None:
    be_sender(7, 1, 9)
    content = {"arrays": ArrayRecord({"w": Array(np.arange(5.0))}), "config": ConfigRecord({"server-round": 3})}
    tree = Parcel.of(Message(RecordDict(content), 5, "train", ttl=60.0)).tree
    assert [len(level) for level in levels(tree, most=6)] == [1, 1, 2, 1, 1]
    assert DEEPEST == 5
    with pytest.raises(TreeRefused, match="more than the 5 objects that are allowed"):
        levels(tree, most=5)


def test_an_object_has_the_same_children_everywhere() -> None:
    chunk = forged("ArrayChunk", b"x")
    both = forged("Array", b"", chunk)
    assert len(levels(forged("RecordDict", b"", both, both).tree, 100)) == 3
    with pytest.raises(TreeRefused, match="other children than before"):
        levels(forged("RecordDict", b"", both, Forged(both.content)).tree, 100)
