"""What a client's receipts say of a reply is what the wire carries, and nothing leaves without one."""

import errno
import hashlib
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.supercore.inflatable.inflatable_object import get_object_children_ids_from_object_content

from client.fleet.activation import Identity
from client.fleet.connection import FleetConnection
from client.outcome import JOINED, Outcome
from client.process.serve import Event, _Client
from client.process.shutdown import GracefulShutdown
from client.settings import Connection, NodeSettings
from client.state.receipts import SENT, read_receipts
from fedappeal.cli.main import main
from fedappeal.flower.bundle import RunSettings
from fedappeal.flower.messages import be_sender
from fedappeal.flower.node.fleet import MessageDropped, MessageRefused, NotConnected
from fedappeal.flower.node.fleet_api import FleetApi
from fedappeal.flower.node.objects import Parcel
from fedappeal.protocol.packing import content_hash

MODEL = ArrayRecord({"w": Array(np.arange(1000, dtype=np.float32))})


class Wire(FleetApi):
    """A transport that keeps what is sent."""

    def _prepare(self, insecure: bool, root_certificates: bytes | None) -> None:
        self.sent: list[bytes] = []

    def _call(self, method: str, request: Any, timeout: float = 0.0) -> Any:
        wanted = [request.message_object_trees[0].object_id]
        trees = list(request.message_object_trees)
        while trees:
            trees += (tree := trees.pop()).children
            wanted.append(tree.object_id)
        return SimpleNamespace(session_id="", objects_to_push=wanted)

    def _begin(self, method: str, request: Any, hold: float = 0.0) -> Any:
        self.sent.append(request.object_content)
        return SimpleNamespace(result=lambda timeout: SimpleNamespace(stored=True), cancel=lambda: None)

    def _give_up(self, call: Any) -> None:
        raise NotImplementedError

    def pass_when_signed(self, shifts: Sequence[float]) -> list[bool]:
        raise NotImplementedError

    def close(self) -> None:
        pass


class Fleet:
    """A connection over that transport."""

    node_id = 1

    def __init__(self) -> None:
        key = ec.generate_private_key(ec.SECP256R1())
        self.wire = Wire("127.0.0.1:1", key, insecure=True, root_certificates=None)
        self.fails: list[Exception] = []

    def run_settings(self, run_id: int) -> RunSettings:
        return RunSettings({"task": "digits", "strategy": "maxfl"}, "1")

    def reply(self, parcel: Parcel, runtime_s: float) -> None:
        if self.fails:
            raise self.fails.pop(0)
        upload = self.wire.push(self.node_id, parcel, runtime_s)
        self.wire.push_objects(self.node_id, 7, upload)


def answer(message: Message, context: Context) -> Outcome:
    if message.metadata.message_type == "evaluate":
        raise ValueError("of my data")
    if message.metadata.message_type == "query":
        info = ConfigRecord({"client-id": "anna", "signature": b"\x00" * 500})
        return Outcome("answered", told={"num-examples": 5}, records={"info": info})
    told = {"loss": 0.5, "num-examples": 5, "nothing": float("nan")}
    return Outcome(JOINED, told=told, records={"arrays": MODEL, "control": MODEL})


class Served:
    """A client whose SuperLink is that wire."""

    def __init__(self, folder: Path) -> None:
        self.events: list[Event] = []
        connection = Connection(superlink="127.0.0.1:1", insecure=True)
        node = NodeSettings(state_dir=str(folder), client_id="anna")
        identity = Identity.of(connection)
        self._client = _Client(node, connection, answer, identity, None, self.events.append, GracefulShutdown())
        self.fleet = Fleet()

    def asked(self, kind: str = "train", **config: int | str) -> None:
        self._client._answer(cast(FleetConnection, self.fleet), message(kind, **config))

    def refused(self) -> None:
        self._client._decline(cast(FleetConnection, self.fleet), MessageRefused("too large", message()))


def message(kind: str = "train", **config: int | str) -> Message:
    be_sender(run_id=7, node_id=1, task_id=9)
    told = ConfigRecord({key.replace("_", "-"): value for key, value in config.items()})
    return Message(RecordDict({"arrays": MODEL, "config": told}), 3, kind)


@pytest.fixture
def served(tmp_path: Path) -> Served:
    return Served(tmp_path)


def receipts(folder: Path) -> tuple[Mapping[str, Any], ...]:
    kept = read_receipts(folder)
    assert kept.problem == ""
    return kept.receipts


def test_a_receipt_says_what_the_wire_carries(served: Served, tmp_path: Path) -> None:
    served.asked("query", run_key="k")
    served.asked(server_round=3, run_key="k")
    served.asked("evaluate", server_round=3, run_key="k")
    served.refused()
    carried = {hashlib.sha256(content).hexdigest(): content for content in served.fleet.wire.sent}
    call, join, failure, refusal = receipts(tmp_path)
    for line, kind, what in zip(
        (call, join, failure, refusal),
        (b"RecordDict", b"RecordDict", b"Message", b"Message"),
        ("answered", "joined", "failed", "failed"),
        strict=True,
    ):
        assert carried[line["hash"]].startswith(kind)
        assert (line["decision"], line["sent"]) == (what, True)
    for name, kept in (("metrics", MetricRecord), ("arrays", ArrayRecord)):
        assert name.encode() in carried[join["hash"]], kept
    below = get_object_children_ids_from_object_content(carried[join["hash"]])
    assert len(below) == 2, "metrics, and one model under two names"
    assert set(below) < set(carried), "each part was sent, and the hash names it by its own"
    metrics = MetricRecord.inflate(next(carried[part] for part in below if carried[part].startswith(b"MetricRecord")))
    sizes = {"arrays (bytes)": 4000 + 128, "control (bytes)": 4000 + 128}
    assert join["told"] == {**metrics, "nothing": "nan", **sizes}
    assert join["model"] == content_hash(MODEL)
    assert (join["run"], join["round"], join["kind"]) == ("k", 3, "train")
    assert call["told"]["info.client-id"] == "anna"
    assert len(call["told"]["info.signature"]) <= 500
    assert failure["told"] == {"error": "ValueError (the client's log says more)"}
    assert b"the client's log says more" in carried[failure["hash"]]
    assert refusal["told"] == {"error": "too large"}


def test_a_reply_that_is_sent_again_has_one_receipt(served: Served, tmp_path: Path) -> None:
    served.fleet.fails = [NotConnected("away")]
    served.asked(server_round=1)
    assert [line["sent"] for line in receipts(tmp_path)] == [True]


def test_a_reply_that_is_dropped_has_a_receipt_that_says_so(served: Served, tmp_path: Path) -> None:
    served.fleet.fails = [MessageDropped("its run has ended")]
    with pytest.raises(MessageDropped, match="its run has ended"):
        served.asked(server_round=1)
    served.asked(server_round=2)
    assert [(line["round"], line["sent"]) for line in receipts(tmp_path)] == [(1, False), (2, True)]


def test_without_room_for_its_receipt_nothing_is_sent(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(file: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    served.asked(server_round=1)
    before = len(served.fleet.wire.sent)
    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", full)
        with pytest.raises(MessageDropped, match=r"its receipt cannot be written, so nothing was sent: .*No space"):
            served.asked(server_round=2)
        served.refused()
    assert len(served.fleet.wire.sent) == before
    served.asked(server_round=3)
    assert [line["round"] for line in receipts(tmp_path)] == [1, 3]


def test_the_receipt_is_there_before_the_reply_leaves(served: Served, tmp_path: Path) -> None:
    class Killed(BaseException):
        pass

    served.fleet.fails = [Killed()]  # type: ignore[list-item]
    with pytest.raises(Killed):
        served.asked(server_round=1)
    assert [(line["round"], line["sent"]) for line in receipts(tmp_path)] == [(1, False)]
    again = Served(tmp_path)
    again.asked(server_round=1)
    assert [(line["number"], line["sent"]) for line in receipts(tmp_path)] == [(1, False), (2, True)]


def sent_command(folder: Path, monkeypatch: pytest.MonkeyPatch) -> object:
    monkeypatch.setattr(sys, "argv", ["fedappeal", "client", "sent", "--state-dir", str(folder)])
    with pytest.raises(SystemExit) as ended:
        main()
    return ended.value.code or 0


def test_the_command_lists_and_checks_them(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    served.asked(server_round=3, run_key="k")
    assert sent_command(tmp_path, monkeypatch) == 0
    said = capsys.readouterr().out
    for part in ("run k, round 3, train: joined", "told: loss 0.5, num-examples 5", "1 receipt: none was changed"):
        assert part in " ".join(said.split())
    path = tmp_path / SENT
    path.write_bytes(path.read_bytes().replace(b"0.5", b"0.4"))
    assert sent_command(tmp_path, monkeypatch) == 1
    assert capsys.readouterr().err == "fedappeal: receipt 1, or the one before it, was changed or is missing\n"
