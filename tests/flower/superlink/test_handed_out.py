"""What `handed_out` reads of a header and keeps; what nodes are handed is in test_held_polls."""

from unittest.mock import Mock

import pytest
from flwr.proto.fleet_pb2 import PullMessagesRequest, PullMessagesResponse
from flwr.proto.message_pb2 import Message, Metadata
from flwr.proto.node_pb2 import Node

from fedappeal.flower.node.fleet import HOLD_HEADER, LONGEST_HOLD
from fedappeal.flower.superlink import handed_out
from fedappeal.flower.superlink.handed_out import HandedOut, asked_to_hold
from fedappeal.system.clock import CLOCK


@pytest.mark.parametrize("said", ["", "soon", "nan", "-1", "0"])
def test_a_header_that_says_no_time_holds_nothing(said: str) -> None:
    assert asked_to_hold([("a", "b"), (HOLD_HEADER, said)]) == 0.0


def test_a_header_is_bounded() -> None:
    assert asked_to_hold([(HOLD_HEADER, "inf")]) == LONGEST_HOLD
    assert asked_to_hold([(HOLD_HEADER, "1.5")]) == 1.5
    assert asked_to_hold(None) == 0.0


def test_what_was_handed_to_nodes_that_are_gone_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handed_out, "_MOST_HANDED", 10)
    out = HandedOut(lambda node: False, lambda root: False)

    def hand(node: int, ttl: float) -> None:
        about = Metadata(dst_node_id=node, created_at=CLOCK.now(), ttl=ttl)
        answer = PullMessagesResponse(messages_list=[Message(metadata=about)])
        out._pull(lambda request, context: answer, PullMessagesRequest(node=Node(node_id=node)), Mock())

    for node in range(8):
        hand(node, ttl=0.0)
    assert list(out._handed) == [7], "those whose time was over are dropped"
    for node in range(8, 30):
        hand(node, ttl=60.0)
    assert list(out._handed) == list(range(20, 30)), "and no more are kept than this"


def test_no_poll_is_held_for_longer_than_proxies_keep_a_connection() -> None:
    assert asked_to_hold([(HOLD_HEADER, "100")]) == 20.0  # many end one that is quiet for 30 s
