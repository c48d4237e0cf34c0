"""The long-lived client as a real process: what its owner and the server see of it."""

import signal
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from client.fleet.connection import FleetConnection
from client.limits.limits import Limits, write_limits
from client.process.owner import reset
from client.process.serve import Event, run_client
from client.settings import Connection, NodeSettings
from client.state.activity import Activity
from client.state.receipts import read_receipts
from client.state.store import DiskStore
from fedappeal.core.local_rule import StoredRecord
from fedappeal.federation.remote import RemoteSuperLink
from fedappeal.federation.superlink import SuperLink
from fedappeal.flower.node.fleet import MessageDropped
from fedappeal.flower.node.objects import Parcel
from tests.ports import free_port
from tests.warm import warm_superlinks

pytestmark = pytest.mark.e2e

Start = Callable[..., Any]
MODEL = np.arange(1000, dtype=np.float32)


def test_it_answers_says_so_and_outlives_an_app_that_fails(
    run: Any, superlink: Any, start_client: Start, tmp_path: Path
) -> None:
    client = start_client(superlink.fleet_address, tmp_path / "state")
    node = client.connected()

    reply = run.ask(node, **{"server-round": 3})
    assert "error" not in reply, reply
    np.testing.assert_array_equal(reply["model"], MODEL)
    expected = {
        "node-id": node,
        "messages": 1,
        "partition-id": 4,
        "num-partitions": 9,
        "allow": "",  # of a long-lived client that says nothing, nothing is allowed
        "run.lr": 0.5,
        "run.maxfl.server-lr": 2.0,
    }
    assert {key: reply["config"][key] for key in expected} == expected
    client.wait_for("round 3: joined (0.0")

    assert run.ask(node, **{"server-round": 4, "do": "raise"})["error"] == (
        2,
        "ValueError (the client's log says more)",
    )
    client.wait_for("round 4: failed, ValueError: no data for this")
    assert run.ask(node, do="leave")["error"][1] == "SystemExit (the client's log says more)"

    assert run.ask(node, decision=0, **{"server-round": 5})["config"]["messages"] == 2  # its state was kept
    client.wait_for("round 5: sat out")
    run.ask(node, decision=-1, **{"server-round": 6})
    client.wait_for("round 6: left for good")
    run.ask(node, kind="evaluate", **{"server-round": 6})
    client.wait_for("round 6: evaluated")
    [run_key] = Activity(tmp_path / "state").runs()
    did = Activity(tmp_path / "state").runs()[run_key]
    assert did.done == {"joined": 1, "sat-out": 1, "left": 1, "evaluated": 1, "failed": 2}
    assert did.bytes_up > MODEL.nbytes
    assert did.bytes_down > 6 * MODEL.nbytes
    sent = read_receipts(tmp_path / "state")
    assert (sent.problem, [line["decision"] for line in sent.receipts]) == (
        "",
        ["joined", "failed", "failed", "sat out", "left for good", "evaluated"],
    )
    assert all(line["sent"] for line in sent.receipts)

    client.signal(signal.SIGTERM)
    since = time.monotonic()
    assert client.exit_code() == 0
    assert time.monotonic() - since < 2.5
    client.wait_for("ended, offline")
    assert node not in run.nodes()


def test_it_rests_while_paused_and_stays_online(
    run: Any, superlink: Any, start_client: Start, tmp_path: Path
) -> None:
    state = tmp_path / "state"
    client = start_client(superlink.fleet_address, state)
    node = client.connected()
    (state / "paused").touch()
    client.wait_for("paused")
    sent = run.push(node)
    assert run.pull(sent, deadline=1.0) is None
    assert node in run.nodes()
    (state / "paused").unlink()
    client.wait_for("resumed")
    assert run.pull(sent)["model"] is not None


@pytest.mark.parametrize("rests", [False, True])
def test_a_client_whose_owner_takes_leaving_back_comes_online_anew(
    run: Any, superlink: Any, start_client: Start, tmp_path: Path, rests: bool
) -> None:
    state = tmp_path / "state"
    client = start_client(superlink.fleet_address, state)
    node = client.connected()
    if rests:
        (state / "paused").touch()
        client.wait_for("paused")
    before = run.activated(node)
    store = DiskStore(state)
    store.write("run-abc", StoredRecord({"requirement": "", "left-round": 3, "goodwill-spent": ""}))
    assert reset(state).endswith("a running run asks again within two rounds (a stock SuperNode: once restarted)")
    while run.activated(node) in (before, ""):
        time.sleep(0.05)
    assert not (state / "returned").exists()
    assert run.ask(node)["model"] is not None
    after = run.activated(node)
    assert "two rounds" not in reset(state), "nothing was left: nothing to announce"
    run.ask(node)
    assert run.activated(node) == after


def test_it_rests_outside_of_its_hours_and_comes_back(
    run: Any, superlink: Any, start_client: Start, tmp_path: Path
) -> None:
    state, now = tmp_path / "state", time.localtime()
    client = start_client(superlink.fleet_address, state)
    node = client.connected()
    run.ask(node, **{"server-round": 3})
    client.wait_for("round 3: joined")
    closed = f"{(now.tm_hour + 2) % 24}-{(now.tm_hour + 3) % 24}"
    write_limits(state, Limits(hours=closed))
    client.wait_for(f"paused: hours = {closed}")
    sent = run.push(node)
    assert run.pull(sent, deadline=1.0) is None
    assert node in run.nodes()
    [did] = Activity(state).runs().values()
    assert [(d.server_round, d.what, d.why) for d in did.decisions[1:]] == [(3, "rested", f"hours = {closed}")]
    write_limits(state, Limits())
    client.wait_for("resumed")
    assert run.pull(sent)["model"] is not None


def test_an_answer_that_comes_too_late_is_dropped_and_said_to_be(
    run: Any, superlink: Any, start_client: Start, tmp_path: Path
) -> None:
    client = start_client(superlink.fleet_address, tmp_path / "state")
    node = client.connected()
    late = run.push(node, ttl=1.0, sleep=1.5, **{"server-round": 8})
    line = client.wait_for("round 8: dropped, its time was over before the answer, which took ")
    assert float(line.rsplit("took ", 1)[1].split()[0]) >= 1.5, "the pause, and what a busy machine adds"
    assert not any("round 8: joined" in line for line in client.lines)
    assert "error" in run.pull(late)  # the SuperLink's own word: there will be no reply
    assert run.ask(node, **{"server-round": 9})["config"]["messages"] == 2


def test_a_killed_client_comes_back_and_a_state_has_one_client(
    run: Any, superlink: Any, start_client: Start, tmp_path: Path
) -> None:
    first = start_client(superlink.fleet_address, tmp_path)
    first.connected()
    second = start_client(superlink.fleet_address, tmp_path)
    assert second.exit_code(20) == 2
    second.wait_for(f"state-dir = '{tmp_path}' is in use by another client (process {first.pid})")
    assert len(second.lines) == 1
    first.kill()
    half_written = [tmp_path / ".tmpAb12Cd", tmp_path / "copies" / ".run-a.safetensors.999999999.tmp"]
    for file in half_written:
        file.parent.mkdir(exist_ok=True)
        file.touch()
    third = start_client(superlink.fleet_address, tmp_path)
    node = third.connected()
    assert not any(file.exists() for file in half_written)
    assert run.ask(node)["model"] is not None

    sent = run.push(node, sleep=60.0)
    assert run.pull(sent, deadline=0.5) is None
    third.signal(signal.SIGINT)  # in the midst of work
    since = time.monotonic()
    assert third.exit_code() == 0
    assert time.monotonic() - since < 2.5
    assert node not in run.nodes()


def test_a_run_of_another_package_version_is_served_and_a_stopped_one_dropped(
    foreign_run: Any, superlink: Any, start_client: Start, tmp_path: Path
) -> None:
    client = start_client(superlink.fleet_address, tmp_path)
    node = client.connected()
    np.testing.assert_array_equal(foreign_run.ask(node, **{"server-round": 2})["model"], MODEL)
    client.wait_for("round 2: joined")
    with closing(FleetConnection(Connection(superlink=superlink.fleet_address, insecure=True))) as fleet:
        assert fleet.run_settings(foreign_run.run_id).version == "9.9.9"
        foreign_run.push(fleet.node_id)
        while (message := fleet.receive()) is None:
            time.sleep(0.05)
        assert fleet.end_of(foreign_run.run_id) is None
        assert RemoteSuperLink(superlink.control_address).stop_run(foreign_run.run_id)
        assert fleet.end_of(foreign_run.run_id) == "stopped", "so its client learns of it without another message"
        answer = RecordDict({"metrics": MetricRecord({"loss": 1.0})})
        with pytest.raises(MessageDropped, match="run has ended"):
            fleet.reply(Parcel.of(Message(answer, reply_to=message)), 0.0)
        assert fleet.receive() is None


def test_it_outlasts_the_loss_of_the_superlink(start_client: Start, tmp_path: Path) -> None:
    with warm_superlinks(), SuperLink(tmp_path / "superlink") as first:
        address = first.fleet_address
        client = start_client(address, tmp_path / "state")
        node = client.connected()
    client.wait_for(f"{address} does not answer any more (trying again)")
    with warm_superlinks(), SuperLink(tmp_path / "superlink", fleet_port=int(address.rsplit(":", 1)[1])):
        client.wait_for("does not know this node any more")
        assert client.connected() != node
        client.signal(signal.SIGTERM)
        assert client.exit_code() == 0


def test_it_gives_up_after_the_connect_timeout_with_one_reason() -> None:
    events: list[Event] = []
    connection = Connection(superlink=f"127.0.0.1:{free_port()}", insecure=True)
    since = time.monotonic()
    code = run_client(NodeSettings(), connection, ClientApp(), connect_timeout=1.5, on_event=events.append)
    assert code == 2
    assert 1.0 < time.monotonic() - since < 5.0
    assert [event.kind for event in events] == ["given-up"]
    assert events[-1].text.startswith("gave up after 1.5 s: nothing listens at 127.0.0.1:")


def test_an_unfit_key_ends_it_at_once(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("nonsense")
    (tmp_path / "ca").write_text("nonsense")
    events: list[Event] = []
    connection = Connection(
        superlink="127.0.0.1:9", key=str(tmp_path / "key"), root_certificates=str(tmp_path / "ca")
    )
    assert run_client(NodeSettings(), connection, ClientApp(), on_event=events.append) == 2
    assert "it must hold an ECDSA key without a passphrase" in events[0].text
