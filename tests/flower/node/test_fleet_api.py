"""The Fleet API against Flower's real servicer over each transport, and against ours: each call and each error."""

import os
import socket
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import psutil
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.supercore.inflatable.inflatable_object import get_object_id

from fedappeal.flower.messages import be_sender
from fedappeal.flower.node import fleet as api
from fedappeal.flower.node import fleet_api, signing
from fedappeal.flower.node.fleet_grpc import GrpcFleet
from fedappeal.flower.node.fleet_http import HttpFleet
from fedappeal.flower.node.objects import Parcel, inflate
from tests.flower.conftest import Server
from tests.ports import free_port

MODEL = np.arange(1000, dtype=np.float32)


def train(node: int, ttl: float = 60.0) -> Message:
    return Message(RecordDict({"arrays": ArrayRecord({"w": Array(MODEL)})}), node, "train", ttl=ttl, group_id="3")


def test_a_message_and_its_reply_go_both_ways(any_server: Server) -> None:
    fleet, node = any_server.node()
    run_id = any_server.start_run({"lr": 0.5})
    assert fleet.pull(node) is None
    sent = any_server.send(train(node))
    announced = fleet.pull(node)
    assert announced is not None
    about = announced.about.metadata
    assert (announced.object_id, about.run_id, about.message_type) == (sent, run_id, "train")
    assert announced.about.metadata.created_at == pytest.approx(time.time(), abs=5)
    assert fleet.pull(node) is None, "a message is handed out once"
    looks: list[int] = []
    assert fleet.pull(node, 0.5, lambda: looks.append(1) is None) is None
    assert len(looks) < 10
    contents = fleet.pull_objects(node, run_id, [*announced.parts, sent])
    message = inflate(sent, contents)
    np.testing.assert_array_equal(message.content["arrays"]["w"].numpy(), MODEL)

    be_sender(run_id, node, announced.about.metadata.dst_task_id or 0)
    trained = RecordDict({"arrays": ArrayRecord({"w": Array(MODEL + 1)}), "metrics": MetricRecord({"loss": 1.0})})
    upload = fleet.push(node, Parcel.of(Message(trained, reply_to=message)), 0.5)
    assert upload.objects
    fleet.push_objects(node, run_id, upload)
    reply = any_server.reply(sent, run_id)
    assert reply is not None
    np.testing.assert_array_equal(reply.content["arrays"]["w"].numpy(), MODEL + 1)
    fleet.confirm(node, run_id, sent)
    with pytest.raises(api.MessageDropped, match="does not have all of it any more"):
        fleet.pull_objects(node, run_id, [sent])


def test_objects_that_the_server_has_not_sent_yet_are_left_out(any_server: Server) -> None:
    fleet, node = any_server.node()
    run_id = any_server.start_run()
    sent = any_server.send(train(node), held_back=2)
    announced = fleet.pull(node)
    assert announced is not None
    contents = fleet.pull_objects(node, run_id, [*announced.parts, sent])
    assert len(contents) == len(announced.parts) + 1 - 2
    assert fleet.pull_objects(node, run_id, [sent]) == {}


def test_more_objects_than_go_side_by_side_come_in_order(any_server: Server) -> None:
    fleet, node = any_server.node()
    run_id = any_server.start_run()
    content = RecordDict({f"c{k}": ConfigRecord({"k": k}) for k in range(20)})
    any_server.send(Message(content, node, "train", ttl=60.0))
    announced = fleet.pull(node)
    assert announced is not None
    assert len(announced.parts) == 21
    contents = fleet.pull_objects(node, run_id, announced.parts)
    assert all(get_object_id(contents[each]) == each for each in announced.parts)


def test_only_objects_that_the_superlink_lacks_are_uploaded(any_server: Server) -> None:
    fleet, node = any_server.node()
    run_id = any_server.start_run()
    sent = any_server.send(train(node))
    announced = fleet.pull(node)
    assert announced is not None
    message = inflate(sent, fleet.pull_objects(node, run_id, [*announced.parts, sent]))
    be_sender(run_id, node, announced.about.metadata.dst_task_id or 0)
    unchanged = Message(RecordDict({"arrays": ArrayRecord({"w": Array(MODEL)})}), reply_to=message)
    upload = fleet.push(node, Parcel.of(unchanged), 0.0)
    assert 0 < len(upload.objects) < 5
    fleet.push_objects(node, run_id, upload)
    lost = api.Upload("no session", upload.objects)
    with pytest.raises(api.MessageDropped, match="did not store the reply"):
        fleet.push_objects(node, run_id, lost)


def test_where_a_runs_settings_are(any_server: Server) -> None:
    fleet, node = any_server.node()
    run_id = any_server.start_run({"lr": 0.5, "maxfl.server-lr": 2.0}, fab=b"bundle")
    run = fleet.get_run(node, run_id)
    assert run.overrides == {"lr": 0.5, "maxfl.server-lr": 2.0}
    assert fleet.get_fab(node, run_id, run.fab_hash) == b"bundle"


def test_a_run_that_is_over_or_unknown_drops_what_is_asked_of_it(any_server: Server) -> None:
    fleet, node = any_server.node()
    run_id = any_server.start_run(fab=b"bundle")
    sent = any_server.send(train(node))
    announced = fleet.pull(node)
    assert announced is not None
    assert any_server.state.stop_run(run_id)
    calls: list[Any] = [
        lambda: fleet.confirm(node, run_id, sent),
        lambda: fleet.pull_objects(node, run_id, [sent]),
        lambda: fleet.get_run(node, run_id),
        lambda: fleet.get_run(node, 0),
        lambda: fleet.get_fab(node, run_id, "hash"),
    ]
    for call in calls:
        with pytest.raises(api.MessageDropped, match="its run has ended"):
            call()


def test_a_node_comes_and_goes(any_server: Server) -> None:
    fleet = any_server.fleet()
    with pytest.raises(api.NotActivated):
        fleet.activate(10.0)
    fleet.register()
    with pytest.raises(api.AlreadyRegistered):
        fleet.register()
    node = fleet.activate(10.0)
    with pytest.raises(api.NotActivated):
        fleet.activate(10.0)
    assert fleet.heartbeat(node, 10.0)
    fleet.deactivate(node, 1.0)
    assert fleet.activate(10.0) == node
    fleet.deactivate(node, 1.0)
    fleet.unregister(node, 1.0)
    for call in (lambda: fleet.pull(node), lambda: fleet.heartbeat(node, 10.0), lambda: fleet.get_run(node, 0)):
        with pytest.raises(api.NodeForgotten, match="does not know this node any more"):
            call()


def test_a_heartbeat_below_flowers_minimum_is_refused(any_server: Server) -> None:
    """`HEARTBEAT_INTERVAL` is the least that Flower allows."""
    fleet = any_server.fleet()
    fleet.register()
    with pytest.raises(api.NotConnected, match=r"failed: (INVALID_ARGUMENT|HTTP 400)"):
        fleet.activate(9.9)


def test_a_superlink_that_admits_registered_keys_only_says_so(strict_server: Server) -> None:
    with pytest.raises(api.KeyRequired):
        strict_server.fleet().register()


def test_a_wrong_time_is_told_apart(any_server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = any_server.fleet()
    # -5 s to 305 s behind the server's time pass.
    assert fleet.pass_when_signed([0.0, 4.5, 5.5, -304.0, -306.0]) == [True, True, False, True, False]
    monkeypatch.setattr(signing, "now", lambda: datetime.now(UTC) + timedelta(seconds=60))
    with pytest.raises(api.WrongClock):
        any_server.fleet().register()


@pytest.mark.parametrize("transport", [GrpcFleet, HttpFleet])
def test_a_superlink_that_is_not_there_does_not_answer(transport: type[GrpcFleet] | type[HttpFleet]) -> None:
    address = f"127.0.0.1:{free_port()}"
    fleet = transport(address, ec.generate_private_key(ec.SECP256R1()), insecure=True, root_certificates=None)
    with pytest.raises(api.NotAnswering):
        fleet.deactivate(5, 0.5)
    with pytest.raises(api.NotAnswering):
        fleet.pass_when_signed([0.0])
    fleet.close()
    with pytest.raises(ValueError if transport is GrpcFleet else api.NotAnswering):
        fleet.deactivate(5, 0.5)


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="Linux has it")
def test_the_system_ends_a_connection_that_nobody_acknowledges(any_server: Server) -> None:
    any_server.node()
    port = int(any_server.address.rpartition(":")[2])
    opened = [at.fd for at in psutil.Process().net_connections("tcp") if at.raddr and at.raddr[1] == port]
    assert opened
    for number in opened:
        with socket.socket(fileno=os.dup(number)) as connection:
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 1000 * fleet_api.SILENT
