"""A client's connection against a real SuperLink."""

import io
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict

from client.fleet.activation import Identity
from client.fleet.connection import KEPT_RUNS, FleetConnection
from client.settings import Connection
from client.state.store import DiskStore
from fedappeal import __version__
from fedappeal.federation.certificates import make_key
from fedappeal.federation.nodes import PublicKey, register, unregister
from fedappeal.federation.remote import RemoteSuperLink
from fedappeal.federation.superlink import SuperLink
from fedappeal.flower.bundle import build_fab
from fedappeal.flower.control import ControlError
from fedappeal.flower.node import signing
from fedappeal.flower.node.fleet import (
    LONGEST_HOLD,
    Announcement,
    MessageDropped,
    NotAnswering,
    NotConnected,
    WrongClock,
)
from fedappeal.flower.node.objects import Parcel
from tests.client import certificates
from tests.warm import warm_superlinks

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def connection(superlink: Any) -> Connection:
    return Connection(superlink=superlink.fleet_address, insecure=True)


@pytest.fixture(scope="module", autouse=True)
def abandoned(connection: Connection) -> tuple[Identity, int, float]:
    """A node that vanished without a word, before all tests: see the last one."""
    identity = Identity.of(connection)
    fleet = FleetConnection(connection, identity)
    fleet.abandon()
    return identity, fleet.node_id, time.monotonic()


@pytest.fixture
def fleet(connection: Connection) -> Iterator[FleetConnection]:
    with closing(FleetConnection(connection)) as connected:
        yield connected


def receive(fleet: FleetConnection, timeout: float = 10.0) -> Message:
    end = time.monotonic() + timeout
    while time.monotonic() < end:
        if (message := fleet.receive()) is not None:
            return message
        time.sleep(0.02)
    raise AssertionError("no message came")


def count_pulls(fleet: FleetConnection, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that collects the number of objects of each round of pulls."""
    pulls: list[int] = []
    pull_objects: Callable[..., dict[str, bytes]] = fleet._fleet.pull_objects

    def counted(*arguments: Any) -> dict[str, bytes]:
        contents = pull_objects(*arguments)
        pulls.append(len(contents))
        return contents

    monkeypatch.setattr(fleet._fleet, "pull_objects", counted)
    return pulls


def test_a_node_is_online_until_it_closes(run: Any, connection: Connection) -> None:
    with closing(FleetConnection(connection)) as fleet:
        assert fleet.node_id in run.nodes()
        assert fleet.receive() is None
    assert fleet.node_id not in run.nodes()
    fleet.close()


def test_a_node_comes_online_anew_and_stays_the_same_node(run: Any, fleet: FleetConnection) -> None:
    first = run.activated(fleet.node_id)
    fleet.come_online_anew()
    second = run.activated(fleet.node_id)
    fleet._fleet.deactivate(fleet.node_id)  # as by an attempt whose answer was lost
    with pytest.raises(NotConnected):
        fleet.come_online_anew()
    assert fleet._fleet.heartbeat(fleet.node_id, 10.0)  # as the thread does it every 7 seconds
    fleet.come_online_anew()
    assert "" < first < second < run.activated(fleet.node_id)
    sent = run.push(fleet.node_id)
    assert receive(fleet).metadata.message_id == sent


def test_a_message_and_its_reply_carry_a_model_both_ways(run: Any, fleet: FleetConnection) -> None:
    model = np.random.default_rng(0).standard_normal(5000).astype(np.float32)
    sent = run.push(fleet.node_id, model=model, **{"server-round": 3})
    message = receive(fleet)
    assert message.metadata.message_id == sent
    assert message.content["config"]["server-round"] == 3
    np.testing.assert_array_equal(message.content["arrays"]["flat"].numpy(), model)
    trained = ArrayRecord({"flat": Array(model + 1)})
    answer = RecordDict({"arrays": trained, "metrics": MetricRecord({"decision": 1})})
    fleet.reply(Parcel.of(Message(answer, reply_to=message)), 0.5)
    np.testing.assert_array_equal(run.pull(sent)["model"], model + 1)


def test_a_model_is_pulled_once_for_evaluate_and_train(
    run: Any, fleet: FleetConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    pulls = count_pulls(fleet, monkeypatch)
    model = np.random.default_rng(1).standard_normal(5000).astype(np.float32)
    for kind, expected in (("evaluate", 6), ("train", 3)):
        before = len(pulls)
        sent = run.push(fleet.node_id, kind, model=model, **{"asked-to": kind})
        message = receive(fleet)
        np.testing.assert_array_equal(message.content["arrays"]["flat"].numpy(), model)
        # In all: Message, RecordDict, ConfigRecord, ArrayRecord, Array, chunk; the last three are the model.
        assert sum(pulls[before:]) == expected
        fleet.reply(Parcel.of(Message(RecordDict({"metrics": MetricRecord({"loss": 1.0})}), reply_to=message)), 0.0)
        assert run.pull(sent)["metrics"] == {"loss": 1.0}


@pytest.mark.parametrize("breaks", [[True], [False, True]], ids=["at the message", "at its parts"])
def test_a_message_that_was_half_pulled_when_the_connection_broke_is_pulled_to_its_end(
    run: Any, fleet: FleetConnection, monkeypatch: pytest.MonkeyPatch, breaks: list[bool]
) -> None:
    """The SuperLink hands a message out once: asking it again would bring nothing."""
    pull_objects = fleet._fleet.pull_objects

    def broken(*arguments: Any) -> dict[str, bytes]:
        if breaks and breaks.pop(0):
            raise NotConnected("connection reset")
        return pull_objects(*arguments)

    monkeypatch.setattr(fleet._fleet, "pull_objects", broken)
    model = np.random.default_rng(2).standard_normal(5000).astype(np.float32)
    sent = run.push(fleet.node_id, model=model)
    with pytest.raises(NotConnected):
        receive(fleet)
    message = receive(fleet)
    assert not breaks
    assert message.metadata.message_id == sent
    np.testing.assert_array_equal(message.content["arrays"]["flat"].numpy(), model)
    fleet.reply(Parcel.of(Message(RecordDict({"metrics": MetricRecord({"loss": 1.0})}), reply_to=message)), 0.0)
    assert run.pull(sent)["metrics"] == {"loss": 1.0}
    assert fleet.receive() is None


def test_messages_are_confirmed_late_and_all_of_them(run: Any, fleet: FleetConnection) -> None:
    """Confirming before the server has sent everything would end the ServerApp; never confirming would fill it."""
    sent = [run.push(fleet.node_id, model=np.full(10, i, np.float32)) for i in range(3)]
    assert [receive(fleet).metadata.message_id for _ in sent] == sent
    # Those before the last one were sent whole: the server sends a run's messages one after the other.
    assert [object_id for _, _, object_id in fleet._unconfirmed] == sent[-1:]
    assert min(due for due, _, _ in fleet._unconfirmed) > time.monotonic() + 1
    while fleet._unconfirmed:
        fleet.receive()
        time.sleep(0.1)
    # The SuperLink let them go: the same content has to be sent, and pulled, anew.
    sent_again = run.push(fleet.node_id, model=np.full(10, 1, np.float32))
    assert receive(fleet).metadata.message_id == sent_again


@pytest.mark.parametrize(
    ("refused", "left"), [(NotAnswering("gone"), 1), (WrongClock("gone"), 1), (NotConnected("no"), 0)]
)
def test_a_message_is_confirmed_again_where_the_connection_was_lost_and_never_keeps_another_from_coming(
    run: Any, fleet: FleetConnection, monkeypatch: pytest.MonkeyPatch, refused: NotConnected, left: int
) -> None:
    """A SuperLink that was restored from a backup refuses what is said of a newer run, again and again."""
    sent = [run.push(fleet.node_id)]
    receive(fleet)
    fleet._make_due(run.run_id)
    with monkeypatch.context() as broken:
        broken.setattr(fleet._fleet, "confirm", Mock(side_effect=refused))
        assert fleet.receive() is None
        assert len(fleet._unconfirmed) == left
        sent.append(run.push(fleet.node_id))
        assert receive(fleet).metadata.message_id == sent[-1]
    fleet._make_due(run.run_id)
    fleet.receive()
    assert not fleet._unconfirmed


def test_what_a_superlink_without_the_run_fails_at_is_dropped(run: Any, fleet: FleetConnection) -> None:
    """As after a restored backup; Flower's own says no more than that it failed."""
    unknown = 12345
    run.push(fleet.node_id)
    message = receive(fleet)
    parcel = Parcel.of(Message(RecordDict({"metrics": MetricRecord({"loss": 1.0})}), reply_to=message))
    parcel.message.metadata.run_id = unknown
    calls: list[Callable[[], object]] = [
        lambda: fleet.reply(parcel, 0.0),
        lambda: fleet.run_settings(unknown),
    ]
    announced = Announcement(message.metadata.message_id, (), message)
    object.__setattr__(message.metadata, "_run_id", unknown)
    calls.append(lambda: fleet._pull_whole(announced))
    for call in calls:
        with pytest.raises(MessageDropped, match="its run has ended"):
            call()
    assert fleet.end_of(unknown) == ""


def test_a_message_whose_time_is_over_is_dropped(run: Any, fleet: FleetConnection) -> None:
    run.push(fleet.node_id, ttl=0.2)
    time.sleep(0.3)
    assert fleet.receive() is None  # the SuperLink itself does not hand it out
    pull = fleet._fleet.pull

    def late(node_id: int, *hold: object) -> Announcement | None:
        announced = pull(node_id)
        if announced is not None:
            time.sleep(0.4)
        return announced

    run.push(fleet.node_id, ttl=0.3)
    fleet._fleet.pull = late  # type: ignore[method-assign]
    with pytest.raises(MessageDropped, match=r"more than 0\.3 s after it was sent"):
        fleet.receive()
    assert fleet.receive() is None


def test_settings_of_a_run_come_from_its_bundle_with_overrides(run: Any, fleet: FleetConnection) -> None:
    settings = fleet.run_settings(run.run_id)
    assert settings.version == __version__
    assert settings.config["lr"] == 0.5
    # Nested in the bundle, and dotted again here.
    assert settings.config["maxfl.server-lr"] == 2.0
    assert settings.config["maxfl.stabilizer"] == 0.001
    assert fleet.run_settings(run.run_id) is settings
    with pytest.raises(MessageDropped):
        fleet.run_settings(12345)


def test_settings_of_the_latest_runs_alone_are_kept(
    run: Any, fleet: FleetConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert fleet.node_id in run.nodes(), "it has begun"
    get_run, get_fab, asked = fleet._fleet.get_run, fleet._fleet.get_fab, list[int]()

    def run_of(node: int, number: int) -> Any:
        asked.append(number)
        return get_run(node, run.run_id)

    monkeypatch.setattr(fleet._fleet, "get_run", run_of)
    monkeypatch.setattr(fleet._fleet, "get_fab", lambda node, number, fab: get_fab(node, run.run_id, fab))
    for number in (*range(KEPT_RUNS + 1), KEPT_RUNS, 0):
        assert fleet.run_settings(number).config["lr"] == 0.5
    assert asked == [*range(KEPT_RUNS + 1), 0]


def test_a_run_is_submitted_followed_and_stopped(superlink: Any) -> None:
    remote = RemoteSuperLink(superlink.control_address)
    with pytest.raises(ControlError, match="refused: Invalid run configuration"):
        remote.start_run(build_fab({"a": 1}), {"b": 2})
    with pytest.raises(ControlError, match="not reachable"):
        RemoteSuperLink("127.0.0.1:1").run_status(1)
    run_id = remote.start_run(build_fab({"a": 1}, "remote_server:app"), {})
    assert not remote.run_status(run_id).finished
    assert remote.stop_run(run_id)
    assert remote.run_status(run_id).status == "stopped"
    assert not remote.stop_run(run_id)


def test_a_client_that_waits_is_answered_when_its_message_is_there_and_confirms_meanwhile(
    run: Any, fleet: FleetConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("client.fleet.connection._CONFIRM_AFTER", 0.5)
    confirmed: list[str] = []
    confirm = fleet._fleet.confirm
    monkeypatch.setattr(fleet._fleet, "confirm", lambda *about: confirmed.append(about[-1]) or confirm(*about))
    sent: list[str] = []

    def waits() -> bool:
        if not sent:  # so the question is held by now
            sent.append(run.push(fleet.node_id))
        return True

    message = fleet.receive(LONGEST_HOLD, waits)
    assert message is not None
    assert [message.metadata.message_id] == sent
    assert fleet.receive(LONGEST_HOLD, lambda: not confirmed) is None
    assert confirmed == sent


def test_a_bundle_holds_settings_and_no_code() -> None:
    fab = build_fab({"strategy": "maxfl", "lr": 0.1, "rounds": 3, "resume": False})
    assert fab == build_fab({"strategy": "maxfl", "lr": 0.1, "rounds": 3, "resume": False})
    with zipfile.ZipFile(io.BytesIO(fab)) as bundle:
        assert sorted(bundle.namelist()) == [".info/CONTENT", "LICENSE", "pyproject.toml"]


def test_over_tls_only_a_registered_key_is_admitted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tls, key, store = certificates.make(tmp_path / "tls"), tmp_path / "client.key", DiskStore(tmp_path / "state")
    make_key(key)
    with warm_superlinks(), SuperLink(tmp_path / "superlink", tls.options) as superlink:
        remote = RemoteSuperLink(superlink.control_address, tls.ca.read_bytes())
        options = {"superlink": superlink.fleet_address, "root_certificates": str(tls.ca)}
        with pytest.raises(NotConnected, match="admits registered keys only, and this node has none"):
            FleetConnection(Connection(**options))
        connection = Connection(**options, key=str(key))
        identity = Identity.of(connection)
        unknown = rf"does not admit this node's key \({identity.client_id}\): it is not registered there"
        with pytest.raises(NotConnected, match=unknown):
            FleetConnection(connection)
        register(remote, PublicKey.read(key.with_suffix(".pub")))
        node_id = remote.nodes()[0].node_id
        for _ in range(2):  # the same key is the same node
            with closing(FleetConnection(connection, identity, store)) as fleet:
                assert fleet.node_id == node_id
                assert fleet.receive() is None
                # One that was here before can tell a key that is online from one that is not known.
                with pytest.raises(NotConnected, match="still counts this node as online"):
                    FleetConnection(connection, identity, store)
                with pytest.raises(NotConnected, match="or another process is online with it"):
                    FleetConnection(connection, identity)
        for ahead, said in (
            (3600.2, r"3600 s \(1\.0 hours\) ahead of"),
            (-400.2, "400 s behind"),
            (90000, "15 hours"),
        ):
            with monkeypatch.context() as patch:
                patch.setattr(signing, "now", lambda ahead=ahead: datetime.now(UTC) + timedelta(seconds=ahead))
                with pytest.raises(NotConnected, match=f"this machine's clock is .*{said}"):
                    FleetConnection(connection, identity)
        run_id = remote.start_run(build_fab({"a": 1}, "remote_server:app"), {})
        assert not remote.run_status(run_id).finished
        unregister(remote, identity.client_id)
        with pytest.raises(NotConnected, match="it was known there before: unregistered since"):
            FleetConnection(connection, identity, store)


def test_a_key_comes_back_as_the_same_node_once_it_counts_as_offline(
    connection: Connection, abandoned: tuple[Identity, int, float]
) -> None:
    identity, node_id, since = abandoned
    if time.monotonic() - since < 15:
        with pytest.raises(NotConnected, match="another process is online with it"):
            FleetConnection(connection, identity)
    time.sleep(max(0.0, since + 20.5 - time.monotonic()))
    with closing(FleetConnection(connection, identity)) as fleet:
        assert fleet.node_id == node_id
