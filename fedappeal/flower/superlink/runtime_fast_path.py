"""The Runtime API's calls that a run makes in every round, without the web framework around them.

A run makes some seventy of them a round. FastAPI looks up in five threads what a call depends on, and Starlette runs
six middlewares in tasks of their own. The steps here are Flower's own, in Flower's order.
"""

from functools import partial
from typing import Any

from flwr.supercore.constant import TASK_TOKEN_HEADER
from flwr.supercore.dependencies import runtime
from flwr.supercore.error.http import http_error_translator
from flwr.supercore.protobuf.translation import ProtobufTranslationMiddleware
from flwr.supercore.runtime_version_compatibility import RuntimeVersionMetadata
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

_QUICK = ("push-messages", "push-object", "pull-messages", "pull-object", "confirm-message-received", "get-nodes")
_VERSION = RuntimeVersionMetadata.from_local_component("flwr-serverapp").as_metadata()
_OF_OURS = {(name.encode(), value.encode()) for name, value in _VERSION}
_PATHS = frozenset(f"/v1/runtime/{name}" for name in _QUICK)


class RuntimeFastPath:
    """An ASGI app that answers frequent ServerApp calls, and passes on all others.

    Of ServerApps of this version.

    Args:
        app: answers the others.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app, self._translation = app, ProtobufTranslationMiddleware(app)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a call, or hand it on."""
        path = scope["path"] if scope["type"] == "http" and scope["method"] == "POST" else ""
        if path in _PATHS and _OF_OURS.issubset(scope["headers"]):
            answer = partial(self._translation.dispatch, call_next=_respond)
            response = await http_error_translator(Request(scope, receive), answer)
            await response(scope, receive, send)
            return
        await self._app(scope, receive, send)


async def _respond(request: Request) -> Response:
    request.state.protobuf_response = await run_in_threadpool(_answer, request)
    return Response()


def _answer(request: Request) -> Any:
    """Return the answer to a call of a task's process."""
    state = runtime.get_runtime_state(request)
    task = runtime.get_task(request, request.headers.get(TASK_TOKEN_HEADER), state)
    handler = request.url.path.rpartition("/")[2].replace("-", "_")
    return getattr(runtime.get_runtime_handlers(request), handler)(request.state.protobuf_request, state, task)
