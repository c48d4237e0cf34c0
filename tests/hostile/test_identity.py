"""Promise: a client-id is its owner's, and neither a forged word, a flood nor a crowd takes a member's place."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.app import ArrayRecord, Error, Message, MetricRecord, RecordDict
from flwr.common.constant import ErrorCode

from client.fleet.activation import Identity
from client.fleet.connection import FleetConnection
from client.settings import Connection
from fedappeal.federation.superlink import import_paths
from fedappeal.flower.node.fleet import MessageDropped, NotConnected
from fedappeal.flower.node.objects import Parcel
from fedappeal.protocol import keys
from fedappeal.record.reader import Record
from server.identities import FILE, IdentityFile
from tests.hostile.federation import _ONE_AT_A_TIME, Answer, Attacker, Federation, enrolled, federation, is_roll_call

ALICE = "client-0000"
PLACES = 6
CROWD = 150


def new_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def trained(message: Message, decision: int = 1) -> Message:
    """A reply to TRAIN whose update is nothing."""
    content: dict[str, ArrayRecord | MetricRecord] = {
        keys.METRICS: MetricRecord({keys.NUM_EXAMPLES: 100, keys.DECISION: decision})
    }
    if decision == 1:
        content[keys.ARRAYS] = message.content.array_records[keys.ARRAYS]
    return Message(RecordDict(content), reply_to=message)  # type: ignore[arg-type]


def member(client_id: str, signed_by: ec.EllipticCurvePrivateKey | None = None, decision: int = 1) -> Answer:
    """Answers as one client; it proves its own key, that of its connection or another."""

    def answer(attacker: Attacker, message: Message) -> Message | None:
        if is_roll_call(message):
            signed = {"signed_by": signed_by, "connection": attacker.fingerprint}
            return enrolled(message, client_id, left_run=0, priority=1, **signed)  # type: ignore[arg-type]
        return trained(message, decision) if message.metadata.message_type == "train" else None

    return answer


def until(attacked: Federation, condition: Callable[[], object], seconds: float = 60.0) -> None:
    """Wait for something, while the run continues."""
    end = time.monotonic() + seconds
    while not condition():
        assert not any(line["event"] == "failed" for line in attacked.events), attacked.events
        assert time.monotonic() < end, f"{attacked.events[-20:]}\n{attacked.log[-3000:]}"
        time.sleep(0.05)


def refusals(attacked: Federation, attacker: Attacker) -> list[str]:
    node = str(attacker.node_id)
    return [line["reason"] for line in attacked.events if line["event"] == "refused" and line["node"] == node]


def enrolments(attacked: Federation, client_id: str) -> int:
    return sum(line["event"] == "enrolled" and line["client"] == client_id for line in attacked.events)


def rounds_of(attacked: Federation, client_id: str, decision: str) -> list[int]:
    lines = Record(attacked.path).decisions
    return [line["round"] for line in lines if line["client-id"] == client_id and line["decision"] == decision]


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """Two honest clients and no end of rounds; each test attacks the same run."""
    folder = tmp_path_factory.mktemp("identity")
    settings = {"clients": 4, "min_clients": 2, "rounds": 100000, "max_clients": PLACES, "round_timeout": 5.0}
    with federation(folder, attackers=2, evaluate_every=0, participation="always", **settings) as made:
        made.submit()
        until(made, lambda: len(made.history) >= 2)
        yield made
        made.stop()


def refused_as_alice(attacked: Federation) -> None:
    """Attack as alice, by the word alone and with the proof of another key: both are refused, by name."""
    before = enrolments(attacked, ALICE)
    for attacker in (attacked.attack(member(ALICE)), attacked.attack(member(ALICE, signed_by=new_key()))):
        until(attacked, lambda one=attacker: refusals(attacked, one))  # type: ignore[misc]
        (reason,) = refusals(attacked, attacker)
        assert reason.startswith(f"client-id '{ALICE}' belongs to another key (key-")
        assert f"fedappeal federation release {ALICE} --to key-" in reason
        assert attacker.received == ["query"]
        attacker.end()
    assert enrolments(attacked, ALICE) == before


def test_another_node_cannot_answer_as_a_client_that_is_online(attacked: Federation) -> None:
    refused_as_alice(attacked)
    now = len(attacked.history)
    until(attacked, lambda: len(attacked.history) >= now + 2)
    assert rounds_of(attacked, ALICE, "joined")[-1] > now, "she continues"
    assert (attacked.path / FILE).stat().st_mode & 0o777 == 0o600
    assert (attacked.path / "clients" / "0000" / "identity.key").stat().st_mode & 0o777 == 0o600


def test_a_proof_for_another_node_or_another_name_does_not_hold(attacked: Federation) -> None:
    """What a member that passes a signature on could try: it names the node, the nonce and the client."""
    key = new_key()

    def passed_on(attacker: Attacker, message: Message) -> Message | None:
        reply = enrolled(message, "oscar", signed_by=key)
        reply.content[keys.INFO][keys.CLIENT_ID] = "otto"  # type: ignore[index]
        return reply

    attacker = attacked.attack(passed_on)
    until(attacked, lambda: refusals(attacked, attacker))
    assert refusals(attacked, attacker) == [
        "the proof that client-id 'otto' is this node's does not hold: the signature does not fit"
    ]
    attacker.end()


def test_a_client_that_left_for_good_is_brought_back_by_its_own_key_alone(attacked: Federation) -> None:
    carol = new_key()
    leaving = attacked.attack(member("carol", signed_by=carol, decision=-1))
    until(attacked, lambda: rounds_of(attacked, "carol", "left"))
    leaving.end()
    thief = attacked.attack(member("carol"))
    until(attacked, lambda: refusals(attacked, thief))
    assert thief.received == ["query"]
    thief.end()
    back = attacked.attack(member("carol", signed_by=carol))
    until(attacked, lambda: rounds_of(attacked, "carol", "joined"))
    back.end()


def test_a_node_that_says_not_available_is_called_ever_less_often(attacked: Federation) -> None:
    def unavailable(attacker: Attacker, message: Message) -> Message | None:
        return Message(Error(ErrorCode.REPLY_MESSAGE_UNAVAILABLE, "[/nope] not now"), reply_to=message)

    attacker = attacked.attack(unavailable)
    until(attacked, lambda: attacker.received)
    now = len(attacked.history)
    time.sleep(8.0)
    # One second, two, four: at most four calls in eight seconds; today's server made 35.
    assert len(attacker.received) <= 4
    told = [line for line in attacked.events if line.get("node") == str(attacker.node_id)]
    assert told, "the operator is told"
    assert "[/nope] not now" in told[0]["reason"]
    assert len(attacked.history) > now
    attacker.end()


class Crowd(threading.Thread):
    """Nodes of one process, each with a key of its own: each answers one roll call and then stays online."""

    def __init__(self, address: str, count: int) -> None:
        super().__init__(name="crowd", daemon=True)
        self.nodes: list[FleetConnection] = []
        for _ in range(count):
            at = Connection(superlink=address, insecure=True)
            self.nodes.append(FleetConnection(at, Identity(new_key(), made_here=True)))
        self.over = threading.Event()

    def run(self) -> None:
        waiting = list(self.nodes)
        while waiting and not self.over.wait(0.01):
            node = waiting.pop(0)
            try:
                with _ONE_AT_A_TIME:
                    message = node.receive()
                    reply = message and enrolled(message, f"sock-puppet-{node.node_id}")
                if reply is not None:
                    node.reply(Parcel.of(reply), 0.0)
                    continue
            except (MessageDropped, NotConnected):
                pass
            waiting.append(node)

    def end(self) -> None:
        self.over.set()
        self.join(20.0)
        for node in self.nodes:
            node.abandon()


def test_a_crowd_takes_the_free_places_and_no_more_and_a_restarted_member_has_hers(attacked: Federation) -> None:
    """Last: she goes away, is attacked again, and comes back under a new node id among 150 others."""
    (alice, *_) = sorted(psutil.Process(attacked.clients.pid).children(), key=lambda process: process.pid)
    alice.send_signal(signal.SIGTERM)
    alice.wait(10.0)
    refused_as_alice(attacked)

    crowd = Crowd(attacked.superlink.fleet_address, CROWD)
    crowd.start()
    back = restarted(attacked)
    try:
        until(attacked, lambda: enrolments(attacked, ALICE) == 2, 120.0)
        now = len(attacked.history)
        until(attacked, lambda: any(number > now for number in rounds_of(attacked, ALICE, "joined")))
    finally:
        back.terminate()
        crowd.end()
        back.wait(20.0)
    puppets = [line for line in attacked.events if line.get("client", "").startswith("sock-puppet")]
    assert len(puppets) == PLACES - 3, "two honest clients and carol are members"
    refused = [line["reason"] for line in attacked.events if line["event"] == "refused"]
    assert f"the run has all of its {PLACES} clients (max-clients)" in refused
    assert len(refused) < 80, "the operator's view is not flooded"
    owners = IdentityFile(attacked.path).read()
    assert set(owners.clients) == {ALICE, "client-0001", "carol"}, "no key of a connection alone lasts"


def restarted(attacked: Federation) -> subprocess.Popen[bytes]:
    """The same client in a new process: its state folder is all that it has."""
    state: Path = attacked.path / "clients" / "0000"
    with (state / "restarted.log").open("wb") as log:
        client = [sys.executable, "-P", "-m", "fedappeal.cli.main", "client", "--insecure", "--partition-id", "0"]
        return subprocess.Popen(
            [*client, "--superlink", attacked.superlink.fleet_address, "--state-dir", str(state)],
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, "OMP_NUM_THREADS": "1", **import_paths(os.environ)},
        )
