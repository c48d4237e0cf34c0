"""Flower's own HTTP grid over Flower's own handlers of the Runtime API, without a socket between them."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import httpx
import numpy as np
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.proto import message_pb2, runtime_pb2
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.superlink.grid.http_grid import HttpGrid
from flwr.superlink.servicer.runtime import runtime_handlers

from fedappeal.flower.grid.http_inbox import HttpInbox
from fedappeal.flower.grid.inbox import inbox_of
from fedappeal.flower.messages import be_sender
from fedappeal.flower.node.objects import Parcel
from fedappeal.protocol import keys
from fedappeal.protocol.packing import Allowance
from tests.flower.conftest import Server
from tests.hostile.forged import Forged, Upload, announce, reply

CALLS: dict[str, tuple[Any, Any]] = {
    "pull-messages": (runtime_handlers.pull_messages, runtime_pb2.PullAppMessagesRequest),
    "push-messages": (runtime_handlers.push_messages, runtime_pb2.PushAppMessagesRequest),
    "pull-object": (runtime_handlers.pull_object, message_pb2.PullObjectRequest),
    "push-object": (runtime_handlers.push_object, message_pb2.PushObjectRequest),
    "confirm-message-received": (
        runtime_handlers.confirm_message_received,
        message_pb2.ConfirmMessageReceivedRequest,
    ),
}


@dataclass
class RuntimeApi:
    """The Runtime API of a run.

    Attributes:
        server: whose state it serves.
        run_id: the run.
        calls: how often each call was made.
        encodings: in which each call's answer may be, the latest.
        announces: whether answers say how long they are.
        error: of which each answer is, where it is not empty; its text.
        read: bytes of all answers that were read.
    """

    server: Server
    run_id: int
    calls: Counter[str] = field(default_factory=Counter)
    encodings: dict[str, str] = field(default_factory=dict)
    announces: bool = True
    error: str = ""
    read: int = 0

    def grid(self) -> HttpGrid:
        grid = HttpGrid("superlink:1", insecure=True, token="any")
        grid.set_run(self.server.state.get_run_info(run_ids=[self.run_id])[0])
        client = RuntimeHttpClient("http://superlink:1")
        client._client = httpx.Client(transport=httpx.MockTransport(self._answer))
        grid._client = client
        return grid

    def _answer(self, request: httpx.Request) -> httpx.Response:
        name = request.url.path.rpartition("/")[2]
        self.calls[name] += 1
        self.encodings[name] = request.headers["accept-encoding"]
        handle, kind = CALLS[name]
        if self.error and name == "pull-object":
            return httpx.Response(503, text=self.error)
        [task] = self.server.state.get_tasks(run_ids=[self.run_id])
        try:
            body = handle(kind.FromString(request.read()), self.server.state, task).SerializeToString()
        except Exception as error:
            return httpx.Response(500, text=str(error))
        if self.announces:
            return httpx.Response(200, headers={"content-length": str(len(body))}, stream=_Parts(self, body))
        return httpx.Response(200, stream=_Parts(self, body))


class _Parts(httpx.SyncByteStream):
    def __init__(self, api: RuntimeApi, body: bytes) -> None:
        self._api, self._body = api, body

    def __iter__(self) -> Any:
        for start in range(0, len(self._body), 1 << 16):
            part = self._body[start : start + (1 << 16)]
            self._api.read += len(part)
            yield part


SENT = ArrayRecord({"flat": Array(np.zeros(4, np.float32))})
ALLOWED = Allowance.of_models(SENT)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Node:
    """A client, and the message that it was sent."""

    fleet: Any
    node_id: int
    message: Message
    id: str

    def forge(self, *children: Forged) -> None:
        self.announce(*children).push()

    def announce(self, *children: Forged) -> Upload:
        upload = announce(self.fleet, self.node_id, *reply(self.message, *children))
        assert not upload.refused
        return upload

    def answer(self, made: Message) -> None:
        upload = self.fleet.push(self.node_id, Parcel.of(made), 0.0)
        self.fleet.push_objects(self.node_id, self.message.metadata.run_id, upload)


class World:
    """A run with some nodes, each of which has a message."""

    def __init__(self, server: Server) -> None:
        self.server, self.clock = server, Clock()
        self.run_id = server.start_run()
        self.api = RuntimeApi(server, self.run_id)
        self.grid = self.api.grid()
        inbox = inbox_of(self.grid)
        assert isinstance(inbox, HttpInbox)
        inbox._clock = self.clock
        self.inbox = inbox

    def node(self, ttl: float = 60.0) -> Node:
        fleet, node_id = self.server.node()
        be_sender(self.run_id, 1, 1)
        message = Message(RecordDict({keys.ARRAYS: SENT}), node_id, "train", ttl=ttl, group_id="1")
        sent = self.server.send(message)
        be_sender(self.run_id, node_id, 1)
        return Node(fleet, node_id, message, sent)

    def pull(self, *nodes: Node, unread: tuple[Node, ...] = ()) -> dict[str, Message]:
        found = self.inbox.pull([n.id for n in nodes], ALLOWED, [n.id for n in unread])
        return {message.metadata.reply_to_message_id: message for message in found}


def joins(message: Message, value: float = 1.0) -> Message:
    arrays = ArrayRecord({"flat": Array(np.full(4, value, np.float32))})
    told = MetricRecord({keys.NUM_EXAMPLES: 100, keys.DECISION: 1})
    return Message(RecordDict({keys.ARRAYS: arrays, keys.METRICS: told}), reply_to=message)
