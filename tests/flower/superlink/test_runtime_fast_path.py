"""The Runtime API's quick calls answer as Flower's own do, to whom Flower's own would."""

import asyncio
from typing import Any

import httpx
import pytest
from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.proto import message_pb2, runtime_pb2
from flwr.proto.node_pb2 import Node
from flwr.supercore.constant import NOOP_FEDERATION_ID, TASK_TOKEN_HEADER, TaskType
from flwr.supercore.runtime_version_compatibility import RuntimeVersionMetadata
from flwr.superlink import main

from fedappeal.flower.superlink.runtime_fast_path import _PATHS, RuntimeFastPath
from tests.flower.conftest import Server

CALLS: dict[str, Any] = {
    "get-nodes": runtime_pb2.GetNodesRequest(),
    "pull-messages": runtime_pb2.PullAppMessagesRequest(),
    "push-messages": runtime_pb2.PushAppMessagesRequest(),  # refused, as it has none
    "pull-object": message_pb2.PullObjectRequest(node=Node(node_id=SUPERLINK_NODE_ID), object_id="none"),
    "push-object": message_pb2.PushObjectRequest(node=Node(node_id=SUPERLINK_NODE_ID), object_id="none"),
    "confirm-message-received": message_pb2.ConfirmMessageReceivedRequest(
        node=Node(node_id=SUPERLINK_NODE_ID), message_object_id="none"
    ),
}


class Asked:
    """Flower's app, alone and behind the quick calls, over one state."""

    def __init__(self, server: Server) -> None:
        app = main.create_app()
        app.state.linkstate_factory = app.state.runtime_state_factory = server.states
        self.reached: list[str] = []

        async def noted(scope: Any, receive: Any, send: Any) -> None:
            self.reached.append(scope["path"])
            await app(scope, receive, send)

        async def quick(scope: Any, receive: Any, send: Any) -> None:
            await RuntimeFastPath(noted)({**scope, "app": app}, receive, send)

        self.apps = app, quick

    def ask(self, call: str, content: bytes, headers: dict[str, str], method: str = "POST") -> list[httpx.Response]:
        """Return both answers to a call, Flower's first."""

        async def both() -> list[httpx.Response]:
            answers = []
            for app in self.apps:
                async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://x") as client:
                    answers.append(
                        await client.request(method, f"/v1/runtime/{call}", content=content, headers=headers)
                    )
            return answers

        return asyncio.run(both())


@pytest.fixture
def headers(asked: Asked, server: Server) -> dict[str, str]:
    """Headers of the process of a run's task."""
    run_id = int(
        server.state.create_run("a/b", "1.0", "hash", {}, NOOP_FEDERATION_ID, None, None, TaskType.SERVER_APP)
    )
    [task] = server.state.get_tasks(run_ids=[run_id])
    token = server.state.claim_task(task.task_id)
    assert server.state.activate_task(task.task_id)
    version = dict(RuntimeVersionMetadata.from_local_component("flwr-serverapp").as_metadata())
    return {"content-type": "application/protobuf", TASK_TOKEN_HEADER: token, **version}


@pytest.fixture
def asked(server: Server) -> Asked:
    return Asked(server)


@pytest.mark.parametrize("call", CALLS)
def test_a_quick_call_is_answered_as_flower_answers_it(asked: Asked, headers: dict[str, str], call: str) -> None:
    theirs, ours = asked.ask(call, CALLS[call].SerializeToString(), headers)
    assert (ours.status_code, ours.content) == (theirs.status_code, theirs.content)
    assert ours.status_code == (500 if call == "push-messages" else 200)
    assert ours.headers["content-type"] == theirs.headers["content-type"]
    assert asked.reached == []


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("wrong", ["no token", "token", "kind", "content"])
def test_a_quick_call_is_refused_as_flower_refuses_it(
    asked: Asked, headers: dict[str, str], call: str, wrong: str
) -> None:
    content = CALLS[call].SerializeToString()
    if wrong == "no token":
        del headers[TASK_TOKEN_HEADER]
    elif wrong == "token":
        headers[TASK_TOKEN_HEADER] = "made up"
    elif wrong == "kind":
        headers["content-type"] = "application/json"
    else:
        content = b"\xff\xff"
    theirs, ours = asked.ask(call, content, headers)
    assert (ours.status_code, ours.content) == (theirs.status_code, theirs.content)
    assert ours.status_code >= 400
    assert asked.reached == []


def test_other_calls_are_handed_on(asked: Asked, headers: dict[str, str]) -> None:
    assert {f"/v1/runtime/{call}" for call in CALLS} == _PATHS
    asked.ask("get-nodes", b"", headers, method="GET")
    asked.ask("send-task-heartbeat", b"", headers)
    asked.ask("get-nodes/", b"", headers)
    headers["flwr-package-version"] = "0.1.0"
    theirs, ours = asked.ask("get-nodes", b"", headers)
    assert theirs.status_code == ours.status_code
    assert ours.status_code >= 400
    handed_on = ["get-nodes", "send-task-heartbeat", "get-nodes/", "get-nodes"]
    assert asked.reached == [f"/v1/runtime/{call}" for call in handed_on]
