"""The Fleet API over gRPC."""

from collections.abc import Sequence
from functools import partial
from http import HTTPStatus
from types import SimpleNamespace
from typing import Any

import grpc  # type: ignore[import-untyped, unused-ignore]
from flwr.proto import fleet_pb2
from flwr.proto.fleet_pb2 import PullMessagesRequest
from flwr.proto.node_pb2 import Node

from fedappeal.flower.node import fleet_api as api
from fedappeal.flower.node.fleet_http import CALLS, HttpCall
from fedappeal.flower.node.proxy import proxy_of
from fedappeal.flower.node.tls import split_address

_STATUS = {
    grpc.StatusCode.UNAUTHENTICATED: HTTPStatus.UNAUTHORIZED,
    grpc.StatusCode.PERMISSION_DENIED: HTTPStatus.FORBIDDEN,
    grpc.StatusCode.FAILED_PRECONDITION: HTTPStatus.PRECONDITION_FAILED,
    grpc.StatusCode.RESOURCE_EXHAUSTED: HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    grpc.StatusCode.UNAVAILABLE: HTTPStatus.SERVICE_UNAVAILABLE,
    grpc.StatusCode.CANCELLED: HTTPStatus.SERVICE_UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED: HTTPStatus.GATEWAY_TIMEOUT,
}
"""gRPC's codes as HTTP's; another one is an error of the SuperLink's."""
_DETAILS = {
    "Concurrent RPC limit exceeded!": HTTPStatus.SERVICE_UNAVAILABLE,
    "Exception deserializing request!": HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
}
"""What gRPC itself says under another code than is meant: of a busy server, and of a request that is too large."""
_CHANNEL_OPTIONS = [
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", api.LARGEST_OBJECT),
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 3000),
    ("grpc.use_local_subchannel_pool", 1),
    # A keepalive makes gRPC set TCP_USER_TIMEOUT. Heartbeats are the pings: others are too rare for a server to mind.
    ("grpc.keepalive_time_ms", 3_600_000),
    ("grpc.keepalive_timeout_ms", 1000 * api.SILENT),
]
_LOST = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)

GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"
"""What a gRPC client says first: the HTTP/2 preface and an empty SETTINGS frame."""


def answers_greeting(answer: bytes) -> bool:
    """Whether the first bytes after `GREETING` are a gRPC server's."""
    return len(answer) >= 4 and answer[3] == 4  # its first frame is SETTINGS, type 4


class GrpcFleet(api.FleetApi):
    """The calls of the Fleet API over a gRPC channel, also where Flower has no gRPC any more."""

    def _prepare(self, insecure: bool, root_certificates: bytes | None) -> None:
        proxy = proxy_of(split_address(self.address)[0], tls=not insecure)
        options = [*_CHANNEL_OPTIONS, ("grpc.http_proxy", proxy.url) if proxy else ("grpc.enable_http_proxy", 0)]
        self._connect = partial(grpc.insecure_channel, self.address, options)
        if not insecure:
            credentials = grpc.ssl_channel_credentials(root_certificates)
            self._connect = partial(grpc.secure_channel, self.address, credentials, options)
        self._renew()

    def _renew(self) -> None:
        super()._renew()
        self._channel = self._connect()  # gRPC closes the one before with its last call
        self._stub: Any = SimpleNamespace(**{call.name: _of_channel(self._channel, call) for call in CALLS.values()})

    def pass_when_signed(self, shifts: Sequence[float]) -> list[bool]:
        """Return whether calls pass when signed with times shifted by these seconds."""
        # By no node, which is refused as well, but for another reason and after the time was looked at.
        request = PullMessagesRequest(node=Node(node_id=0))
        calls = [
            self._stub.PullMessages.future(request, timeout=api.CLOCK_TIMEOUT, metadata=self._signer.headers(shift))
            for shift in shifts
        ]
        for call in calls:
            if _status(call) in api.NO_ANSWER:
                raise self._explain(call)
        return [api.WRONG_TIME not in str(call.details()) for call in calls]

    def close(self) -> None:
        """Close the channel, without a word to the SuperLink."""
        self._channel.close()

    def _call(self, method: str, request: Any, timeout: float = api.TIMEOUT) -> Any:
        try:
            return getattr(self._stub, method)(request, timeout=timeout, metadata=self._sign())
        except grpc.RpcError as error:
            raise self._explain(error) from None

    def _begin(self, method: str, request: Any, hold: float = 0.0) -> Any:
        timeout = api.TIMEOUT if hold else api.OBJECT_TIMEOUT
        return getattr(self._stub, method).future(request, timeout=timeout, metadata=self._sign(hold))

    def _give_up(self, call: Any) -> None:
        call.cancel()

    def _result(self, call: Any, timeout: float | None = None) -> Any:
        try:
            return call.result(timeout)
        except grpc.FutureTimeoutError:
            raise TimeoutError from None
        except grpc.RpcError as error:
            raise self._explain(error) from None

    def _explain(self, error: Any) -> Exception:
        if error.code() in _LOST:
            self._renew()
        return self._error(_status(error), str(error.details() or ""), error.code().name)


def _of_channel(channel: Any, call: HttpCall) -> Any:
    """Return a call of the Fleet API over a channel."""
    service = fleet_pb2.DESCRIPTOR.services_by_name["Fleet"].full_name
    codec = {
        "request_serializer": call.request.SerializeToString,
        "response_deserializer": call.answer.FromString,
    }
    return channel.unary_unary(f"/{service}/{call.name}", **codec)


def _status(error: Any) -> HTTPStatus:
    return _DETAILS.get(error.details()) or _STATUS.get(error.code(), HTTPStatus.INTERNAL_SERVER_ERROR)
