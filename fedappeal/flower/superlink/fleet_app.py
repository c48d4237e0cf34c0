"""A SuperLink's Fleet API over HTTP, on a port of its own.

It has the calls and limits that gRPC has.

A call's path, headers, answers and errors are those of Flower 1.40 and later, so that its SuperNodes can join.
Flower's own HTTP server reads a body of any size before it looks at the signature, and serves APIs that run code at
the same port. Here a request is refused by its headers; a body is read only as far as it may be, a long one of known
nodes alone; and an idle connection costs no thread: a held poll is an event that one thread's loop waits for.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from http import HTTPStatus
from typing import Any, NoReturn

import grpc  # type: ignore[import-untyped, unused-ignore]
from flwr.common.constant import PUBLIC_KEY_HEADER
from flwr.proto.fleet_pb2 import PullMessagesRequest, PullMessagesResponse
from flwr.supercore.error import FlowerError
from flwr.supercore.error.catalog import API_ERROR_MAP
from flwr.supercore.logger import FLOWER_LOGGER
from google.protobuf.message import DecodeError  # type: ignore[import-untyped, unused-ignore]
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response
from starlette.types import Message, Receive, Scope, Send

from fedappeal.flower.node.fleet import HOLD_HEADER
from fedappeal.flower.node.fleet_http import CALLS, MEDIA_TYPE, HttpCall
from fedappeal.flower.node.signing import NotSigned, signed_by
from fedappeal.flower.superlink.connections import LONGEST
from fedappeal.flower.superlink.guarded_fleet import GuardedFleet
from fedappeal.flower.superlink.held_polls import HeldPolls, Poll, asked_to_hold
from fedappeal.flower.superlink.request_sizes import SMALL_REQUEST, most_bytes
from fedappeal.flower.superlink.superlink_log import MEANINGS, RateLimitedLog
from fedappeal.system.http_server import read_body

MOST_AT_ONCE = 32
"""Calls of one key at one time, each until its answer is on its way."""
_SMALL_WITHIN = 30.0
_WORKERS = 16
_REFUSED = "Invalid SuperNode authentication"
_STATUS = {
    grpc.StatusCode.UNAUTHENTICATED: HTTPStatus.UNAUTHORIZED,
    grpc.StatusCode.UNAVAILABLE: HTTPStatus.SERVICE_UNAVAILABLE,
}
_BY_PATH: Mapping[str, HttpCall] = {call.path: call for call in CALLS.values()}

log = RateLimitedLog()


class _Context:
    """The part of a gRPC call's context that `GuardedFleet` uses."""

    def __init__(self, headers: Mapping[bytes, bytes], key: bytes) -> None:
        hold = headers.get(HOLD_HEADER.encode(), b"").decode("latin-1")
        self._metadata: list[tuple[str, str | bytes]] = [(PUBLIC_KEY_HEADER, key)]
        if hold:
            self._metadata.append((HOLD_HEADER, hold))

    def invocation_metadata(self) -> Sequence[tuple[str, str | bytes]]:
        return self._metadata

    def abort(self, code: grpc.StatusCode, details: str) -> NoReturn:
        raise HTTPException(_STATUS.get(code, HTTPStatus.BAD_REQUEST), details)


class FleetApp:
    """The Fleet API over HTTP (ASGI).

    Args:
        fleet: its calls.
        polls: holds polls.
    """

    def __init__(self, fleet: GuardedFleet, polls: HeldPolls) -> None:
        self._fleet, self._polls = fleet, polls
        self._threads = ThreadPoolExecutor(_WORKERS, "fleet-http")
        # Nodes whose heartbeats wait behind a thousand other calls would count as offline.
        self._heartbeats = ThreadPoolExecutor(1, "fleet-http-heartbeats")
        self._calls: Counter[bytes] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a call."""
        with ExitStack() as counted:
            closing = {"connection": "close"}  # what was not read of a request is not read afterwards
            try:
                response = Response(await self._answer(scope, receive, counted), media_type=MEDIA_TYPE)
            except FlowerError as error:
                spec = API_ERROR_MAP[error.code]
                FLOWER_LOGGER.error("[%s][ApiError:%s] %.300r", scope["path"], error.code, error.message)
                response = JSONResponse(error.to_json(spec.public_message), spec.http_status_code or 500)
            except HTTPException as error:
                response = JSONResponse({"detail": error.detail}, error.status_code, closing)
            except ConnectionResetError:
                return
            except Exception as error:
                kind = type(error).__name__
                FLOWER_LOGGER.error("[%s][UnexpectedError:%s] %.300r", scope["path"], kind, str(error))
                response = JSONResponse({"detail": "Internal server error."}, 500, closing)
            await response(scope, receive, partial(_send_whole, send))

    async def _answer(self, scope: Scope, receive: Receive, counted: ExitStack) -> bytes:
        call, headers = _BY_PATH.get(scope["path"]), dict(scope["headers"])
        if call is None or scope["method"] != "POST":
            raise HTTPException(HTTPStatus.NOT_FOUND)
        try:
            key = signed_by(headers)
        except NotSigned as error:
            log.warn(MEANINGS[str(error)])
            raise HTTPException(HTTPStatus.UNAUTHORIZED, _REFUSED) from None
        counted.enter_context(self._counted(key))
        content = await self._read(call.name, headers, receive, key)
        if headers.get(b"content-type", b"").partition(b";")[0].strip().lower() != MEDIA_TYPE.encode():
            raise HTTPException(HTTPStatus.UNSUPPORTED_MEDIA_TYPE)
        try:
            request = call.request.FromString(content)
        except DecodeError:
            raise HTTPException(HTTPStatus.BAD_REQUEST, "Invalid protobuf payload") from None
        context = _Context(headers, key)
        ask = partial(self._call, call.name, key, request, context)
        hold = asked_to_hold(context.invocation_metadata())
        if isinstance(request, PullMessagesRequest) and hold > 0:
            answer = await self._hold(request.node.node_id, hold, ask, receive)
        else:
            threads = self._heartbeats if call.name == "SendNodeHeartbeat" else self._threads
            answer = await asyncio.get_running_loop().run_in_executor(threads, ask)
        return bytes(answer.SerializeToString())

    @contextmanager
    def _counted(self, key: bytes) -> Iterator[None]:
        """Count a call of a key while it lasts."""
        if self._calls[key] >= MOST_AT_ONCE:
            raise HTTPException(HTTPStatus.TOO_MANY_REQUESTS, f"more than {MOST_AT_ONCE} calls at one time")
        self._calls[key] += 1
        try:
            yield
        finally:
            self._calls[key] -= 1
            if not self._calls[key]:
                del self._calls[key]

    async def _read(self, call: str, headers: Mapping[bytes, bytes], receive: Receive, key: bytes) -> bytes:
        """Return a request's body, within its key's bounds."""
        most, within = SMALL_REQUEST, _SMALL_WITHIN
        too_large = HTTPException(HTTPStatus.UNAUTHORIZED, _REFUSED)  # as any call of a node that is not known
        length = headers.get(b"content-length", b"").decode("latin-1")
        if (not length or int(length) > most) and await self._in_thread(self._node_of, key) is not None:
            most, within = most_bytes(call), LONGEST
            too_large = HTTPException(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"a request of more than {most} bytes")
        try:
            return await read_body(receive, length, most, within)
        except HTTPException as error:
            raise too_large if error.status_code == HTTPStatus.REQUEST_ENTITY_TOO_LARGE else error from None

    def _node_of(self, key: bytes) -> int | None:
        node: int | None = self._fleet.state_factory.state().get_node_id_by_public_key(key)
        return node

    def _call(self, name: str, key: bytes, request: Any, context: _Context) -> Any:
        """Make a call in a thread, if it is about the signing node."""
        if not hasattr(request, "public_key"):  # those that name a key are refused where the node may be unknown
            node = request.node.node_id if hasattr(request, "node") else request.node_id
            if self._node_of(key) != node:
                raise HTTPException(HTTPStatus.UNAUTHORIZED, _REFUSED)
        return getattr(self._fleet, name)(request, context)

    async def _hold(self, node: int, seconds: float, ask: Any, receive: Receive) -> PullMessagesResponse:
        """Answer a held poll without a thread; it ends with its connection."""
        loop = asyncio.get_running_loop()
        answered: asyncio.Future[PullMessagesResponse | Exception] = loop.create_future()
        gone = asyncio.ensure_future(receive())  # nothing more can come but the connection's end
        first: set[asyncio.Future[Any]] = {answered, gone}

        def end(outcome: PullMessagesResponse | Exception) -> None:
            loop.call_soon_threadsafe(lambda: None if answered.done() else answered.set_result(outcome))

        poll = Poll(node, time.monotonic() + seconds, ask, end, lambda: not gone.done())
        try:
            await self._in_thread(self._polls.hold, poll)
            await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
        finally:
            gone.cancel()
            self._polls.drop(poll)
        outcome = answered.result() if answered.done() else ConnectionResetError()
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    async def _in_thread(self, call: Any, *arguments: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._threads, call, *arguments)


async def _send_whole(send: Send, event: Message) -> None:
    """Send a part of an answer; the last one once all before it is sent."""
    if event["type"] == "http.response.body":
        await send({**event, "more_body": True})
        event = {"type": event["type"]}
    await send(event)
