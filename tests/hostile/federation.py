"""A real federation to attack: a SuperLink, honest client processes, a run, and attackers with real node keys.

An attacker is a thread with its own key and its own connection to the Fleet API. It gets each message that the run
sends it, and a function of a test says what it sends back: a reply, a forged bundle of objects, or nothing.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric import ec
from flwr.app import ConfigRecord, Message, MessageType, MetricRecord, RecordDict

from client.fleet.activation import Identity
from client.fleet.connection import FleetConnection
from client.settings import Connection
from fedappeal.federation.remote import RemoteSuperLink
from fedappeal.federation.superlink import SuperLink
from fedappeal.flower.node.fleet import MessageDropped, NotConnected
from fedappeal.flower.node.objects import Parcel
from fedappeal.protocol import keys, proof
from fedappeal.record.folder import KIND, LOCAL
from fedappeal.record.follower import WatchedRun
from fedappeal.record.lines import INITIAL
from fedappeal.record.reader import Record
from fedappeal.runs.launch.clients import ClientProcesses
from fedappeal.runs.plan import RunPlan
from fedappeal.settings.config import RunConfig

_ONE_AT_A_TIME = threading.Lock()
"""Flower gives new messages one identity for the whole process: attackers take turns."""

Answer = Callable[["Attacker", Message], Message | None]
"""What an attacker does with a message: the reply that is sent; None: nothing, or it has sent something itself."""


class Attacker(threading.Thread):
    """A node whose owner means harm.

    Args:
        address: of the SuperLink's Fleet API.
        answer: what it does with a message.
        key: its node key; None: a new one.
    """

    def __init__(self, address: str, answer: Answer, key: ec.EllipticCurvePrivateKey | None = None) -> None:
        super().__init__(name="attacker", daemon=True)
        self.key = key or ec.generate_private_key(ec.SECP256R1())
        at = Connection(superlink=address, insecure=True)
        self.connection = FleetConnection(at, Identity(self.key, made_here=True))
        self.fleet, self.node_id = self.connection._fleet, self.connection.node_id
        self.received: list[str] = []
        self._answer = answer
        self._over = threading.Event()

    def run(self) -> None:
        """Answer messages until the end."""
        while not self._over.wait(0.05):
            try:
                with _ONE_AT_A_TIME:
                    message = self.connection.receive()
                    if message is None:
                        continue
                    self.received.append(message.metadata.message_type)
                    reply = self._answer(self, message)
                if reply is not None:
                    self.connection.reply(Parcel.of(reply), 0.0)
            except (MessageDropped, NotConnected):
                continue

    @property
    def fingerprint(self) -> str:
        """Of its node key."""
        return proof.fingerprint(proof.public_pem(self.key.public_key()))

    def end(self) -> None:
        """Go offline."""
        self._over.set()
        self.join(10.0)
        self.connection.close()


def enrolled(
    message: Message,
    client_id: str = "mallory",
    *,
    signed_by: ec.EllipticCurvePrivateKey | None = None,
    connection: str = "",
    **info: str | int | bytes,
) -> Message:
    """Return an honest answer to the roll call.

    Args:
        message: the roll call.
        client_id: a member's; two attackers of one run need two.
        signed_by: proves this key's client-id; None: the attacker's node key does, by its connection.
        connection: fingerprint of the node key, which the proof names; empty: it names the node id.
        info: adds to what it says.
    """
    answer: dict[str, Any] = {keys.CLIENT_ID: client_id, keys.ROLE: keys.SEEN}
    if signed_by is not None:
        asked = message.content.config_records[keys.CONFIG]
        node, run_key = connection or str(message.metadata.dst_node_id), str(asked[keys.RUN_KEY])
        stated = proof.statement(str(asked[keys.NONCE]), run_key, node, client_id)
        public_key = proof.public_pem(signed_by.public_key()).decode()
        answer |= {keys.PUBLIC_KEY: public_key, keys.SIGNATURE: proof.sign(signed_by, stated)}
    answer |= {key.replace("_", "-"): value for key, value in info.items()}
    content = {keys.INFO: ConfigRecord(answer), keys.METRICS: MetricRecord({keys.NUM_EXAMPLES: 100})}
    return Message(RecordDict(content), reply_to=message)


def sat_out(message: Message) -> Message:
    """Return an honest answer to TRAIN, without a model, or to EVALUATE."""
    metrics = {keys.NUM_EXAMPLES: 100, keys.LOSS: 1.0, "accuracy": 0.5, keys.DECISION: 0}
    return Message(RecordDict({keys.METRICS: MetricRecord(metrics)}), reply_to=message)


def is_roll_call(message: Message) -> bool:
    """Whether a message asks who is there."""
    return message.metadata.message_type.partition(".")[0] == MessageType.QUERY


def is_train(message: Message) -> bool:
    """Whether a message asks for training."""
    return message.metadata.message_type.partition(".")[0] == MessageType.TRAIN


@dataclass
class Federation:
    """A SuperLink, its honest clients, and at most one run.

    Attributes:
        config: of the run; its clients are the honest ones and the attackers.
        path: the run's folder.
        superlink: the process.
        clients: the honest clients' processes.
        attackers: those that were let loose.
    """

    config: RunConfig
    path: Path
    superlink: SuperLink
    clients: ClientProcesses
    attackers: list[Attacker] = field(default_factory=list)
    run_id: int = 0

    def attack(self, answer: Answer, key: ec.EllipticCurvePrivateKey | None = None) -> Attacker:
        """Let an attacker loose."""
        attacker = Attacker(self.superlink.fleet_address, answer, key)
        self.attackers.append(attacker)
        attacker.start()
        return attacker

    def submit(self) -> None:
        """Submit the run."""
        settings = self.config.model_copy(
            update={"out": str(self.path), "resume": True, "initial_model": str(self.path / INITIAL)}
        )
        self.run_id = self._remote.submit(settings)

    def follow(self, seconds: float = 120.0) -> None:
        """Wait until the run has finished, and fail the test where it has not."""
        follower = WatchedRun(self.path, lambda kind, line: None)
        until = time.monotonic() + seconds
        while not follower.finished:
            follower.read()
            status = self._remote.run_status(self.run_id)
            follower.read()
            assert not follower.failed, follower.failed
            assert follower.finished or not status.finished, f"{status}\n{self.log}"
            assert time.monotonic() < until, f"not finished after {seconds} s: {self.history}"
            time.sleep(0.1)

    def run(self, seconds: float = 120.0) -> None:
        """Submit the run and wait for its end."""
        self.submit()
        self.follow(seconds)

    def stop(self) -> None:
        """Stop the run."""
        self._remote.stop_run(self.run_id)

    @property
    def _remote(self) -> RemoteSuperLink:
        return RemoteSuperLink(self.superlink.control_address)

    @property
    def history(self) -> list[dict[str, Any]]:
        """A line a round so far."""
        return Record(self.path).history

    @property
    def events(self) -> list[dict[str, Any]]:
        """What else the run's folder says happened."""
        return Record(self.path).events

    @property
    def log(self) -> str:
        """The SuperLink's log, the ServerApp's lines in it."""
        return self.superlink.log_file.read_text(errors="replace")

    def failures_of(self, client_id: str) -> list[str]:
        """Why a client failed, round by round."""
        return [line["failures"][client_id] for line in self.history if client_id in line.get("failures", {})]


@contextmanager
def federation(folder: Path, *, attackers: int = 1, **settings: Any) -> Iterator[Federation]:
    """Start a federation whose run has places for some attackers.

    Args:
        folder: where everything goes.
        attackers: places, of the run's ``clients``, that no honest client takes.
        settings: of the run; by default 3 clients, 3 rounds of FedAvg on digits.

    Yields:
        The federation, its honest clients connecting; all of its processes have ended afterwards.
    """
    chosen = {"task": "digits", "strategy": "fedavg", "clients": 3, "rounds": 3, "local_steps": 5} | settings
    config = RunConfig.parse_recorded({key.replace("_", "-"): value for key, value in chosen.items()})
    path = folder / "run"
    plan = RunPlan.of(config, path)
    plan.folder({KIND: LOCAL})
    superlink = SuperLink(path / "logs")
    clients = ClientProcesses(plan)
    clients._plan["clients"] = clients._plan["clients"][: config.clients - attackers]  # type: ignore[index]
    with ExitStack() as stack:
        stack.callback(superlink.stop)
        stack.callback(clients.end)
        clients.start()
        superlink.start()
        clients.connect(superlink.fleet_address)
        clients.wait_until_loaded()
        made = Federation(config, path, superlink, clients)
        stack.callback(lambda: [attacker.end() for attacker in made.attackers])
        yield made
