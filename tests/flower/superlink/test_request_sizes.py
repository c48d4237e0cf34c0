"""What a request may have leaves room for what Flower's clients send; what is refused is in test_fleet_limits."""

from flwr.proto.message_pb2 import ObjectTree

from fedappeal.flower.superlink.guarded_fleet import LARGEST_ANNOUNCEMENT, MOST_OBJECTS
from fedappeal.flower.superlink.request_sizes import LARGEST_REQUEST, SMALL_REQUEST, most_bytes


def test_the_largest_reply_that_is_allowed_can_be_announced() -> None:
    leaves = [ObjectTree(object_id="0" * 64) for _ in range(MOST_OBJECTS - 1)]
    tree = ObjectTree(object_id="0" * 64, children=leaves)
    assert tree.ByteSize() + LARGEST_ANNOUNCEMENT < most_bytes("PushMessages")


def test_an_object_may_be_large_and_all_else_is_small() -> None:
    assert most_bytes("PushObject") == LARGEST_REQUEST
    assert {most_bytes(call) for call in ("PullMessages", "GetRun", "RegisterNode")} == {SMALL_REQUEST}
