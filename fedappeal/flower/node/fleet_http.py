"""The Fleet API over HTTP, as Flower 1.40 and later speak it.

Each call is a POST of protobuf with signed headers.
"""

import http.client
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from selectors import EVENT_READ, DefaultSelector
from types import MappingProxyType
from typing import Any

from flwr.proto import fleet_pb2
from google.protobuf.message import DecodeError  # type: ignore[import-untyped, unused-ignore]
from google.protobuf.message_factory import GetMessageClass  # type: ignore[import-untyped, unused-ignore]

from fedappeal.flower.node import fleet_api as api
from fedappeal.flower.node.fleet import NotAdmitted
from fedappeal.flower.node.proxy import proxy_of, tunnelled
from fedappeal.flower.node.signing import Headers, http_headers
from fedappeal.flower.node.tls import split_address, trusting

MEDIA_TYPE = "application/protobuf"
_CHUNK = 1 << 20
_TCP = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 2, "TCP_USER_TIMEOUT": 1000 * api.SILENT}
"""What ends a connection within `SILENT`, where the system has it: seconds, a count, milliseconds."""


@dataclass(frozen=True)
class HttpCall:
    """A call of the Fleet API: name, path, and types of request and answer."""

    name: str
    path: str
    request: Any
    answer: Any


def _calls() -> Iterator[HttpCall]:
    for method in fleet_pb2.DESCRIPTOR.services_by_name["Fleet"].methods:
        path = re.sub("(?<!^)([A-Z])", r"-\1", method.name).lower()
        types = GetMessageClass(method.input_type), GetMessageClass(method.output_type)
        yield HttpCall(method.name, f"/v1/fleet/{path}", *types)


CALLS = MappingProxyType({call.name: call for call in _calls()})
"""The calls of Flower's own description of the service, by name."""


class HttpFleet(api.FleetApi):
    """A client of the Fleet API over HTTP/1.1, with a few persistent connections."""

    def _prepare(self, insecure: bool, root_certificates: bytes | None) -> None:
        host, port = split_address(self.address)
        make: Callable[[], http.client.HTTPConnection] = partial(http.client.HTTPConnection, host, port)
        if not insecure:
            make = partial(http.client.HTTPSConnection, host, port, context=trusting(root_certificates))
        self._make: Callable[[], http.client.HTTPConnection] = lambda: tunnelled(
            make(), proxy_of(host, tls=not insecure)
        )
        self._lock = threading.Lock()
        self._idle: list[http.client.HTTPConnection] = []
        self._busy: dict[http.client.HTTPConnection, socket.socket | None] = {}
        self._polls: dict[Future[Any], http.client.HTTPConnection] = {}
        self._closed = threading.Event()
        self._threads = ThreadPoolExecutor(api.SIDE_BY_SIDE + 1, "fleet")

    def pass_when_signed(self, shifts: Sequence[float]) -> list[bool]:
        """Return whether calls pass when signed with times shifted by these seconds."""
        return list(self._threads.map(lambda shift: self._passes(self._signer.headers(shift)), shifts))

    def close(self) -> None:
        """Close the connections, without a word to the SuperLink."""
        with self._lock:
            self._closed.set()
            connections = [*self._idle, *self._busy]
            self._idle.clear()
        for connection in connections:
            self._hang_up(connection)

    def _call(self, method: str, request: Any, timeout: float = api.TIMEOUT) -> Any:
        return self._exchange(method, request, self._sign(), timeout)

    def _begin(self, method: str, request: Any, hold: float = 0.0) -> Any:
        if not hold:
            return self._threads.submit(self._exchange, method, request, self._sign(), api.OBJECT_TIMEOUT)
        connection = self._take()
        call = self._threads.submit(self._exchange, method, request, self._sign(hold), api.TIMEOUT, connection)
        self._polls[call] = connection
        return call

    def _give_up(self, call: Any) -> None:
        connection = self._polls.pop(call)
        if not call.done():
            self._hang_up(connection)

    def _exchange(
        self,
        method: str,
        request: Any,
        headers: Headers,
        timeout: float,
        connection: http.client.HTTPConnection | None = None,
    ) -> Any:
        call = CALLS[method]
        connection = connection or self._take()
        status, content = self._post(connection, call.path, request.SerializeToString(), headers, timeout)
        if status != HTTPStatus.OK:
            raise self._explain(status, content, headers)
        try:
            return call.answer.FromString(content)
        except DecodeError:
            raise self._error(HTTPStatus.INTERNAL_SERVER_ERROR, "what came is no answer", "HTTP") from None

    def _post(
        self, connection: http.client.HTTPConnection, path: str, content: bytes, headers: Headers, timeout: float
    ) -> tuple[int, bytes]:
        """Return the status and content of a connection's answer.

        The connection may then be used again.
        """
        keep, until = False, time.monotonic() + timeout
        late = threading.Timer(timeout, self._hang_up, [connection])  # a socket's own timeout is for each piece
        late.daemon = True
        late.start()
        try:
            connection.timeout = timeout
            if connection.sock is None:
                connection.connect()
                _watch(connection.sock)
            connection.sock.settimeout(timeout)
            self._busy[connection] = connection.sock
            with suppress(ConnectionError):  # one that refuses a request need not read all of it
                connection.request("POST", path, content, {"content-type": MEDIA_TYPE, **http_headers(headers)})
            response = connection.getresponse()
            received = _read(response)
            keep = response.isclosed()
            too_large = len(received) > api.LARGEST_OBJECT
            return HTTPStatus.REQUEST_ENTITY_TOO_LARGE if too_large else response.status, received
        except (OSError, http.client.HTTPException, ValueError) as error:
            if isinstance(error, TimeoutError) or time.monotonic() >= until:
                self._renew()
            raise self._no_answer() from None
        finally:
            late.cancel()
            with self._lock:
                self._busy.pop(connection, None)
                keep = keep and not self._closed.is_set()
                if keep:
                    self._idle.append(connection)
            if not keep:
                connection.close()

    def _renew(self) -> None:
        super()._renew()
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def _take(self) -> http.client.HTTPConnection:
        """Return an open connection, or a new one."""
        with self._lock:
            if self._closed.is_set():
                raise self._no_answer()
            while self._idle:
                connection = self._idle.pop()
                if connection.sock is None or not _is_readable(connection.sock):
                    break
                connection.close()  # ended by the SuperLink meanwhile
            else:
                connection = self._make()
            self._busy[connection] = connection.sock
            return connection

    def _hang_up(self, connection: http.client.HTTPConnection) -> None:
        """End a connection, and the wait for its answer in another thread."""
        # http.client may let go of a socket before its answer is read.
        opened = self._busy.get(connection, connection.sock)
        if opened is not None:
            with suppress(OSError):
                opened.shutdown(socket.SHUT_RDWR)

    def _passes(self, headers: Headers) -> bool:
        """Whether a call that is signed so passes, of a known node or not."""
        # Refused in any case, and changing nothing; but for another reason, and after the time was looked at.
        request = fleet_pb2.ActivateNodeRequest(public_key=self._signer.public_key, heartbeat_interval=0.0)
        content = request.SerializeToString()
        status, _ = self._post(self._take(), CALLS["ActivateNode"].path, content, headers, api.CLOCK_TIMEOUT)
        return status != HTTPStatus.UNAUTHORIZED

    def _no_answer(self) -> Exception:
        return self._error(HTTPStatus.SERVICE_UNAVAILABLE, "", "")

    def _explain(self, status: int, content: bytes, headers: Headers) -> Exception:
        if status == HTTPStatus.NOT_FOUND:
            return NotAdmitted(
                f"what listens at {self.address} is no Fleet API over HTTP: is the port the right one?"
            )
        text = content[: 16 << 10].decode(errors="replace")
        if status == HTTPStatus.UNAUTHORIZED:  # one text for every reason
            text = api.UNKNOWN_NODE if self._passes(headers) else api.WRONG_TIME
        return self._error(status, text, f"HTTP {status}")


def _read(response: http.client.HTTPResponse) -> bytes:
    """Read an answer until its end, or until it is too large."""
    if response.length is None and not response.chunked:
        raise http.client.IncompleteRead(b"")  # it would end wherever the connection does
    parts, size = list[bytes](), 0
    while part := response.read(min(_CHUNK, api.LARGEST_OBJECT + 1 - size)):
        parts.append(part)
        size += len(part)
    if response.length and size <= api.LARGEST_OBJECT:
        raise http.client.IncompleteRead(b"")
    return b"".join(parts)


def _watch(connected: Any) -> None:
    """Let the system end a connection that has become silent."""
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _TCP.items():
        if option := getattr(socket, name, None):
            connected.setsockopt(socket.IPPROTO_TCP, option, value)


def _is_readable(opened: socket.socket) -> bool:
    with DefaultSelector() as selector:
        selector.register(opened, EVENT_READ)
        return bool(selector.select(0))
