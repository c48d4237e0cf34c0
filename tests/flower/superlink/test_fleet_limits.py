"""What the bounds of guarded_fleet rely on: how Flower makes a Fleet API, and how it stores objects."""

import logging
from collections.abc import Iterator
from unittest.mock import Mock

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message, RecordDict
from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.proto import fleet_pb2, message_pb2
from flwr.proto.fab_pb2 import GetFabRequest
from flwr.proto.fleet_pb2 import DESCRIPTOR, PushMessagesRequest
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.message_pb2 import Message as MessageProto
from flwr.proto.message_pb2 import PushObjectRequest, PushObjectResponse
from flwr.proto.node_pb2 import Node
from flwr.proto.run_pb2 import GetRunRequest
from flwr.server.superlink.fleet.grpc_rere.fleet_servicer import FleetServicer
from flwr.supercore.error import ApiErrorCode, FlowerError
from flwr.supercore.logger import FLOWER_LOGGER

from fedappeal.flower.grid.assembly import TreeRefused
from fedappeal.flower.messages import be_sender, error_reply
from fedappeal.flower.node.fleet import NodeForgotten, NotActivated, ObjectTooLarge
from fedappeal.flower.node.objects import Parcel
from fedappeal.flower.superlink import guarded_fleet
from fedappeal.flower.superlink.guarded_fleet import (
    AT_LEAST,
    MOST_NODES,
    TIMES,
    GuardedFleet,
    flower,
    guard_fleet_api,
)
from fedappeal.flower.superlink.request_sizes import LARGEST_REQUEST, SMALL_REQUEST
from fedappeal.flower.superlink.superlink_log import RateLimitedLog, ReadableCalls
from fedappeal.protocol import keys
from fedappeal.protocol.proof import client_id_of
from tests.flower.conftest import Server, serve, serve_by
from tests.hostile.forged import Forged, Upload, announce, forged, model, npy, reply

MIB = 1 << 20


@pytest.fixture(params=["grpc", "http"])
def bounded(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """A Fleet API with the bounds: over gRPC made by Flower's own function, or ours over HTTP."""
    if request.param == "http":
        yield from serve_by("http")
        return
    for name in ("FleetServicer", "generic_create_grpc_server", "GRPC_MAX_MESSAGE_LENGTH"):
        monkeypatch.setattr(flower, name, getattr(flower, name))  # put back after the test
    guard_fleet_api()
    yield from serve(run=flower._run_fleet_api_grpc_rere)


def limited(store: dict[str, bytes]) -> GuardedFleet:
    named = {
        "state_factory": Mock(),
        "objectstore_factory": Mock(store=lambda: store),
        "enable_supernode_auth": False,
    }
    return GuardedFleet(Mock(), **named)


class Sender:
    """A node that was sent a model, and answers again and again."""

    def __init__(self, server: Server, floats: int = 4) -> None:
        self.server = server
        self.fleet, self.node_id = server.node()
        self.run_id = server.start_run()
        self.floats = floats

    def receive(self, pulls: bool = True) -> None:
        be_sender(self.run_id, SUPERLINK_NODE_ID, 1)
        arrays = ArrayRecord({"flat": Array(np.zeros(self.floats, np.float32))})
        self.message = Message(RecordDict({keys.ARRAYS: arrays}), self.node_id, "train", ttl=60.0)
        self.server.send(self.message)
        announced = self.fleet.pull(self.node_id)
        assert announced is not None
        if pulls:
            self.fleet.pull_objects(self.node_id, self.run_id, [*announced.parts, announced.object_id])
        be_sender(self.run_id, self.node_id, 1)

    def announce(self, *children: Forged) -> Upload:
        return announce(self.fleet, self.node_id, *reply(self.message, *children))


def filled(mib: int, first: int = 0) -> Forged:
    """A reply of chunks of 1 MiB, all different."""
    return model(*(bytes([first + k]) * MIB for k in range(mib)))


def test_an_honest_reply_passes(bounded: Server) -> None:
    sender = Sender(bounded)
    sender.receive()
    upload = sender.fleet.push(sender.node_id, Parcel.of(error_reply("no memory", sender.message)), 0.0)
    sender.fleet.push_objects(sender.node_id, sender.run_id, upload)
    got = bounded.reply(sender.message.metadata.message_id, sender.run_id)
    assert got is not None
    assert got.error.reason == "no memory"


def test_a_request_above_the_largest_is_refused_before_it_is_read(bounded: Server) -> None:
    sender = Sender(bounded)
    sender.receive()
    upload = sender.announce(model(bytes(LARGEST_REQUEST)))
    upload.push(1)
    assert "is not allowed" in upload.refused[0]
    assert upload.pushed == 0


def test_a_request_without_objects_is_small(bounded: Server) -> None:
    fleet, node = bounded.node()
    with pytest.raises(ObjectTooLarge):
        fleet.get_fab(node, 1, "x" * SMALL_REQUEST)
    assert fleet.heartbeat(node, 10.0), "it is served further"


def test_all_nodes_replies_together_are_bounded(bounded: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guarded_fleet, "MOST_STORED", 6 * MIB)
    first, second = Sender(bounded), Sender(bounded)
    first.receive()
    assert not first.announce(filled(4)).push().refused
    second.receive()
    assert set(second.announce(filled(4, first=100)).push().refused) == {"not stored"}
    bounded.states.objectstore_factory.store().clear()
    monkeypatch.setattr(guarded_fleet, "RECOUNTED_EVERY", 0.0)
    second.receive()
    assert not second.announce(filled(4, first=200)).push().refused, "what is forgotten takes up nothing"


def push(fleet: GuardedFleet, object_id: str, size: int) -> bool:
    """Push an object as node 1."""
    request = PushObjectRequest(node=Node(node_id=1), object_id=object_id, object_content=bytes(size))
    return bool(fleet.PushObject(request, Mock()).stored)


class Looked(dict[str, bytes]):
    """A store that notes which objects are looked for."""

    def __init__(self, **objects: bytes) -> None:
        super().__init__(objects)
        self.looks: list[object] = []

    def __contains__(self, key: object) -> bool:
        self.looks.append(key)
        return super().__contains__(key)


def test_a_full_node_is_looked_through_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FleetServicer, "PushObject", lambda *_: PushObjectResponse(stored=True))
    monkeypatch.setattr(guarded_fleet, "AT_LEAST", 10)
    store = Looked(a=b"")
    fleet = limited(store)
    fleet._node(1).messages = 1
    assert push(fleet, "a", 10)
    assert not any(push(fleet, "b", 1) for _ in range(3))
    assert store.looks == ["a"], "the node's objects are looked for once in a while, not at each refusal"
    store.clear()
    fleet._node(1).recounted = float("-inf")
    assert push(fleet, "b", 1)


def test_a_full_store_is_looked_through_now_and_then_and_said_to_be_full(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store = Looked(a=b"")
    looks = store.looks
    monkeypatch.setattr(guarded_fleet, "MOST_STORED", 10)
    monkeypatch.setattr(guarded_fleet, "RECOUNTED_EVERY", float("inf"))
    monkeypatch.setattr(guarded_fleet, "_LOG", RateLimitedLog())
    monkeypatch.setattr(FLOWER_LOGGER, "propagate", True)
    monkeypatch.setattr(FleetServicer, "PushObject", lambda *_: PushObjectResponse(stored=True))
    fleet = limited(store)
    fleet._recounted = 0.0
    assert push(fleet, "a", 10)
    assert not any(push(fleet, "b", 1) for _ in range(3))
    assert not looks, "it is not time yet"
    assert [record.getMessage() for record in caplog.records] == [
        "replies are refused: those of all nodes may take up 0 MB together"
    ]
    monkeypatch.setattr(guarded_fleet, "RECOUNTED_EVERY", 0.0)
    assert not push(fleet, "b", 1)
    assert looks == ["a"]
    store.clear()
    assert push(fleet, "b", 1)


def test_what_flower_does_not_store_takes_up_nothing_and_what_it_has_counts_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store: dict[str, bytes] = {}
    fleet = limited(store)

    def stores(_: object, request: PushObjectRequest, __: object) -> PushObjectResponse:
        if request.object_id == "of a run that has ended":
            raise FlowerError(ApiErrorCode.FLEET_RUN_STATUS_NOT_ALLOWED, "")
        stored = request.object_id != "made up" and request.object_id not in store  # as Flower: one is stored once
        if stored:
            store[request.object_id] = request.object_content
        return PushObjectResponse(stored=stored)

    monkeypatch.setattr(FleetServicer, "PushObject", stores)
    assert not push(fleet, "made up", 5)
    with pytest.raises(FlowerError):
        push(fleet, "of a run that has ended", 5)
    assert fleet._stored == 0
    assert push(fleet, "a", 5)
    assert not push(fleet, "a", 5)
    assert fleet._stored == 5
    assert fleet._nodes[1].stored == {"a": 5}


@pytest.mark.parametrize("sent_mib", [0, 2])
def test_a_nodes_replies_take_up_what_it_was_sent_a_few_times(
    bounded: Server, sent_mib: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guarded_fleet, "RECOUNTED_EVERY", 0.0)
    sender = Sender(bounded, floats=sent_mib * MIB // 4 + 4)
    sender.receive()
    upload = sender.announce(filled(8 + 4 * sent_mib + 3)).push()
    # The small objects besides the chunks: array, record, metrics, RecordDict, message.
    assert upload.pushed == AT_LEAST // MIB + TIMES * sent_mib + 5
    assert upload.refused == ["not stored"] * 3
    store = bounded.states.objectstore_factory.store()
    store.clear()
    sender.receive()
    assert not sender.announce(filled(4, first=100)).push().refused, "what is forgotten takes up nothing"


def test_a_node_that_does_not_pull_what_it_was_sent_is_bounded_too(bounded: Server) -> None:
    sender = Sender(bounded)
    sender.receive(pulls=False)
    # The small objects besides the chunks take the room of one.
    assert sender.announce(filled(AT_LEAST // MIB + 3)).push().refused == ["not stored"] * 4


def test_a_deep_tree_and_one_that_grows_behind_its_announcement_are_refused(bounded: Server) -> None:
    sender = Sender(bounded)
    sender.receive()
    deep = forged("ArrayChunk", b"end")
    for _ in range(5):
        deep = forged("RecordDict", b"{}", deep)
    assert "nested more than 5 deep" in sender.announce(deep).refused[0]
    twice = forged("RecordDict", b"{}", model(npy(4)), Forged(model(npy(4)).content))
    assert "other children than before" in sender.announce(twice).refused[0]
    stored = model(npy(8))
    assert not sender.announce(stored).refused
    sender.receive()
    assert "stored with other children" in sender.announce(Forged(stored.content)).refused[0]


def test_announcements_are_bounded_in_size(bounded: Server) -> None:
    sender = Sender(bounded)
    sender.receive()
    proto, root = reply(sender.message)
    proto.error.reason = "x" * 100_000
    assert "is not allowed: up to 65536" in announce(sender.fleet, sender.node_id, proto, root).refused[0]


@pytest.mark.parametrize(("messages", "trees"), [(1, 0), (0, 1), (1, 2), (2, 1), (2, 2)])
def test_one_reply_is_announced_at_a_time_with_one_tree(messages: int, trees: int) -> None:
    root = forged("Message", b"{}")
    request = PushMessagesRequest(messages_list=[MessageProto()] * messages, message_object_trees=[root.tree] * trees)
    with pytest.raises(TreeRefused, match="one reply at a time, with the tree of its objects"):
        limited({})._is_repeat(request)


def test_a_node_sends_no_instructions_and_nothing_in_anothers_name(bounded: Server) -> None:
    sender = Sender(bounded)
    sender.receive()
    victim, victim_id = bounded.node()

    def instruct(proto: MessageProto) -> None:
        proto.metadata.src_node_id, proto.metadata.dst_node_id = SUPERLINK_NODE_ID, victim_id
        proto.metadata.reply_to_message_id = ""

    def answer_as_another(proto: MessageProto) -> None:
        proto.metadata.src_node_id = victim_id

    def instruct_in_its_own_name(proto: MessageProto) -> None:
        proto.metadata.reply_to_message_id = ""

    for forge in (instruct, answer_as_another, instruct_in_its_own_name):
        proto, root = reply(sender.message, model(npy(4)))
        forge(proto)
        assert "replies only, and only its own" in announce(sender.fleet, sender.node_id, proto, root).refused[0]
    assert victim.pull(victim_id) is None
    assert not sender.announce(model(npy(4))).refused, "and its own reply passes"


def test_a_node_does_nothing_with_anothers_id_or_key(bounded: Server) -> None:
    """Neither a node nor a stranger: a key is no secret, and with registered keys, too, anyone can name one."""
    sender = Sender(bounded)
    sender.receive(pulls=False)
    victim, message_id = Node(node_id=sender.node_id), sender.message.metadata.message_id
    run, key = {"node": victim, "run_id": sender.run_id}, sender.fleet._signer.public_key
    object_of = {**run, "object_id": message_id}
    calls = {
        "DeactivateNode": fleet_pb2.DeactivateNodeRequest(node_id=sender.node_id),
        "UnregisterNode": fleet_pb2.UnregisterNodeFleetRequest(node_id=sender.node_id),
        "SendNodeHeartbeat": SendNodeHeartbeatRequest(node=victim, heartbeat_interval=10.0),
        "PullMessages": fleet_pb2.PullMessagesRequest(node=victim),
        "PushMessages": PushMessagesRequest(node=victim),
        "PullObject": message_pb2.PullObjectRequest(**object_of),
        "PushObject": PushObjectRequest(**object_of, object_content=b"x"),
        "ConfirmMessageReceived": message_pb2.ConfirmMessageReceivedRequest(**run, message_object_id=message_id),
        "GetRun": GetRunRequest(**run),
        "GetFab": GetFabRequest(**run, hash_str="hash"),
        "RegisterNode": fleet_pb2.RegisterNodeFleetRequest(public_key=key),
        "ActivateNode": fleet_pb2.ActivateNodeRequest(public_key=key, heartbeat_interval=1800.0),
    }
    assert calls.keys() == {call.name for call in DESCRIPTOR.services_by_name["Fleet"].methods}
    sender.fleet.deactivate(sender.node_id)
    for thief in (bounded.node()[0], bounded.fleet()):
        for name, request in calls.items():
            with pytest.raises(NodeForgotten):
                thief._call(name, request)
    assert sender.fleet.activate(10.0) == sender.node_id, "nobody was online in its place"
    assert not sender.announce(model(npy(4))).refused, "and its message is there"


def test_nodes_that_are_gone_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guarded_fleet, "MOST_NODES", 3)
    assert MOST_NODES > 3
    limits = limited({"kept": b""})
    limits._node(1).stored = {"kept": 1, "deleted": 1}
    limits._node(2).stored = {"deleted": 1}
    for node_id in (3, 4, 5, 3, 6):
        limits._node(node_id)
    assert sorted(limits._nodes) == [1, 3, 6], "one whose bytes are stored is remembered, and else the latest"
    assert limits._nodes[1].stored == {"kept": 1}


def test_the_latest_node_is_remembered_though_all_others_have_something_stored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(guarded_fleet, "MOST_NODES", 2)
    limits = limited({"kept": b""})
    for node_id in (1, 2):
        limits._node(node_id).stored = {"kept": 1}
    assert limits._node(3) is limits._node(3)
    assert sorted(limits._nodes) == [1, 2, 3]


def test_a_client_that_is_not_registered_is_one_line_until_the_reason_changes(
    bounded: Server, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FLOWER_LOGGER, "propagate", True)
    caplog.set_level(logging.INFO, "flwr")
    now = [100.0]
    new = ReadableCalls(lambda: now[0])

    def shown() -> list[str]:
        records = [record for record in caplog.records if "ApiError" in record.getMessage()]
        caplog.clear()
        return [f"{record.levelname} {record.getMessage()}" for record in records if new.filter(record)]

    def refused() -> None:
        with pytest.raises(NotActivated):
            fleet.activate(10.0)

    fleet, other = bounded.fleet(), bounded.fleet()
    client = client_id_of(fleet._signer.public_key)
    for _ in range(3):
        refused()
    assert shown() == [f"WARNING a client is refused: {client} is not registered"]
    refused()
    with pytest.raises(NotActivated):
        other.activate(10.0)
    (line,) = shown()
    assert client_id_of(other._signer.public_key) in line, "each client has a line of its own"
    fleet.register()
    fleet.activate(10.0)
    for _ in range(2):
        refused()
    assert shown() == [f"WARNING a client is refused: {client} counts as online still"], "another reason"
    now[0] += 601.0
    refused()
    assert len(shown()) == 1
