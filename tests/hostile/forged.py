"""Replies that no Flower client would send, in Flower's own format of objects: ``TYPE CHILDREN LENGTH\\0BODY``."""

import hashlib
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from flwr.app import Array, Message, MetricRecord, RecordDict
from flwr.app.message import remove_content_from_message
from flwr.common.serde import message_to_proto
from flwr.proto import fleet_pb2, message_pb2
from flwr.proto.node_pb2 import Node

from fedappeal.flower.node.fleet import MessageDropped, NotConnected
from fedappeal.protocol import keys


@dataclass(frozen=True)
class Forged:
    """An object as it is stored, and those that it names."""

    content: bytes
    children: tuple["Forged", ...] = ()

    @cached_property
    def id(self) -> str:
        return hashlib.sha256(self.content).hexdigest()

    @property
    def tree(self) -> message_pb2.ObjectTree:
        return message_pb2.ObjectTree(object_id=self.id, children=[child.tree for child in self.children])

    def all(self) -> Iterator["Forged"]:
        """Itself and all below, children first."""
        for child in self.children:
            yield from child.all()
        yield self


def forged(kind: str, body: bytes, *children: Forged) -> Forged:
    """An object with a valid head and a valid hash."""
    ids = ",".join(dict.fromkeys(child.id for child in children))
    return Forged(f"{kind} {ids} {len(body)}".encode() + b"\0" + body, children)


def array(values: Sequence[bytes], shape: Sequence[int], dtype: str = "float32", ids: Sequence[int] = ()) -> Forged:
    """An array of chunks; ``ids``: which chunk follows which, by default each once."""
    chunks = [forged("ArrayChunk", each) for each in values]
    told = {
        "dtype": dtype,
        "shape": list(shape),
        "stype": "numpy.ndarray",
        "arraychunk_ids": list(ids or range(len(chunks))),
    }
    return forged("Array", json.dumps(told).encode(), *chunks)


def record(**arrays: Forged) -> Forged:
    return forged(
        "ArrayRecord", json.dumps({name: each.id for name, each in arrays.items()}).encode(), *arrays.values()
    )


def metrics(**told: Any) -> Forged:
    said = {keys.NUM_EXAMPLES: 100, keys.DECISION: 1} | {key.replace("_", "-"): value for key, value in told.items()}
    return Forged(MetricRecord(said).deflate())


def model(*values: bytes, shape: Sequence[int] = (4,), ids: Sequence[int] = ()) -> Forged:
    """A RecordDict that joins with one array 'flat'."""
    return content(**{keys.ARRAYS: record(flat=array(values, shape, ids=ids)), keys.METRICS: metrics()})


def content(**records: Forged) -> Forged:
    body = json.dumps({name: each.id for name, each in records.items()}).encode()
    return forged("RecordDict", body, *records.values())


def npy(count: int) -> bytes:
    return Array(np.zeros(count, np.float32)).data


def reply(message: Message, *children: Forged) -> tuple[message_pb2.Message, Forged]:
    """A reply's announcement and its root object, which holds these."""
    proto = message_to_proto(remove_content_from_message(Message(RecordDict(), reply_to=message)))
    root = forged("Message", proto.SerializeToString(deterministic=True), *children)
    proto.metadata.message_id = root.id
    return proto, root


@dataclass
class Upload:
    """A reply that was announced, and what came of its objects.

    Attributes:
        left: objects that the SuperLink wants and that were not pushed.
        pushed: how many were.
        refused: what the SuperLink said against the announcement or an object.
    """

    fleet: Any
    node_id: int
    run_id: int
    left: list[Forged]
    session: str = ""
    pushed: int = 0
    refused: list[str] = field(default_factory=list)

    def push(self, count: int | None = None, every: float = 0.0) -> "Upload":
        """Push objects, children first: some or all; ``every``: seconds between two."""
        for each in self.left[:count]:
            request = message_pb2.PushObjectRequest(
                node=Node(node_id=self.node_id),
                run_id=self.run_id,
                object_id=each.id,
                object_content=each.content,
                session_id=self.session,
            )
            try:
                stored = self.fleet._call("PushObject", request).stored
                self.pushed += stored
                self.refused += [] if stored else ["not stored"]
            except (NotConnected, MessageDropped) as error:
                self.refused.append(str(error))
            self.left.remove(each)
            time.sleep(every)
        return self


def announce(fleet: Any, node_id: int, proto: message_pb2.Message, root: Forged) -> Upload:
    """Announce a reply whose root object is this one, by the calls of a node."""
    proto.metadata.message_id = root.id
    upload = Upload(fleet, node_id, proto.metadata.run_id, [])
    request = fleet_pb2.PushMessagesRequest(
        node=Node(node_id=node_id),
        messages_list=[proto],
        message_object_trees=[root.tree],
        clientapp_runtime_list=[0],
    )
    try:
        answer = fleet._call("PushMessages", request)
    except (NotConnected, MessageDropped) as error:
        upload.refused.append(str(error))
        return upload
    upload.session, wanted = answer.session_id, set(answer.objects_to_push)
    upload.left = [each for each in {o.id: o for o in root.all()}.values() if each.id in wanted]
    return upload
