"""Flower's own HTTP grid over Flower's own handlers of the Runtime API, without a socket between them."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import httpx
from flwr.proto import message_pb2, runtime_pb2
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.superlink.grid.http_grid import HttpGrid
from flwr.superlink.servicer.runtime import runtime_handlers

from tests.flower.conftest import Server

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
        sent: bytes of the largest answer that was read.
        announces: whether answers say how long they are.
    """

    server: Server
    run_id: int
    calls: Counter[str] = field(default_factory=Counter)
    announces: bool = True
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
        handle, kind = CALLS[name]
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
