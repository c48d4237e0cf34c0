"""What `guarded_fleet` keeps, and how Flower makes a Fleet API; what nodes are handed is in test_held_polls."""

import inspect
from unittest.mock import Mock

import pytest
from flwr.proto.fleet_pb2 import PullMessagesRequest, PullMessagesResponse
from flwr.proto.message_pb2 import Message, Metadata
from flwr.proto.node_pb2 import Node
from flwr.server.superlink.fleet.grpc_rere.fleet_servicer import FleetServicer

from fedappeal.flower.node.fleet import HOLD_HEADER, LONGEST_HOLD
from fedappeal.flower.superlink import guarded_fleet
from fedappeal.flower.superlink.guarded_fleet import GuardedFleet, flower, guard_fleet_api
from fedappeal.flower.superlink.held_grpc import GrpcPolls
from fedappeal.flower.superlink.held_polls import asked_to_hold
from fedappeal.flower.superlink.request_sizes import LARGEST_REQUEST
from fedappeal.system.clock import CLOCK


@pytest.mark.parametrize("said", ["", "soon", "nan", "-1", "0"])
def test_a_header_that_says_no_time_holds_nothing(said: str) -> None:
    assert asked_to_hold([("a", "b"), (HOLD_HEADER, said)]) == 0.0


def test_a_header_is_bounded() -> None:
    assert asked_to_hold([(HOLD_HEADER, "inf")]) == LONGEST_HOLD
    assert asked_to_hold([(HOLD_HEADER, "1.5")]) == 1.5
    assert asked_to_hold(None) == 0.0


def test_what_was_handed_to_nodes_that_are_gone_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guarded_fleet, "_MOST_HANDED", 10)
    answers: list[PullMessagesResponse] = []
    monkeypatch.setattr(FleetServicer, "PullMessages", lambda *_: answers.pop())
    asked = Mock(invocation_metadata=lambda: ((HOLD_HEADER, "20"),))
    fleet = GuardedFleet(
        *(Mock(),),
        **{"state_factory": Mock(), "objectstore_factory": Mock(), "enable_supernode_auth": False},
    )

    def hand(node: int, ttl: float) -> None:
        about = Metadata(dst_node_id=node, created_at=CLOCK.now(), ttl=ttl)
        answers.append(PullMessagesResponse(messages_list=[Message(metadata=about)]))
        fleet.PullMessages(PullMessagesRequest(node=Node(node_id=node)), asked)

    for node in range(8):
        hand(node, ttl=0.0)
    assert list(fleet._handed) == [7], "those whose time was over are dropped"
    for node in range(8, 30):
        hand(node, ttl=60.0)
    assert list(fleet._handed) == list(range(20, 30)), "and no more are kept than this"


def test_no_poll_is_held_for_longer_than_proxies_keep_a_connection() -> None:
    assert asked_to_hold([(HOLD_HEADER, "100")]) == 20.0  # many end one that is quiet for 30 s


@pytest.mark.parametrize("before", [None, ["limits"]])
def test_polls_are_held_before_all_and_calls_are_guarded_behind_all(
    monkeypatch: pytest.MonkeyPatch, before: list[object] | None
) -> None:
    made: list[list[object]] = []
    monkeypatch.setattr(flower, "generic_create_grpc_server", lambda *, interceptors, **_: made.append(interceptors))
    for name in ("FleetServicer", "GRPC_MAX_MESSAGE_LENGTH"):
        monkeypatch.setattr(flower, name, getattr(flower, name))  # put back after the test
    door = Mock()
    guard_fleet_api(first=[door])
    flower.generic_create_grpc_server(interceptors=before)
    ((outermost, *rest),) = made
    assert isinstance(outermost, GrpcPolls)
    assert rest == [door, *(before or [])], "and this one is asked before Flower's"
    assert flower.GRPC_MAX_MESSAGE_LENGTH == LARGEST_REQUEST
    run = inspect.getsource(flower._run_fleet_api_grpc_rere)
    assert "fleet_servicer = FleetServicer(" in run
    assert "max_message_length=GRPC_MAX_MESSAGE_LENGTH," in run
