"""What stands before all calls over gRPC.

Polls are held, and requests that are too large refused unparsed, or those of other users.
"""

import time
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

import grpc  # type: ignore[import-untyped, unused-ignore]
from flwr.proto.fleet_pb2 import PullMessagesRequest, PullMessagesResponse
from flwr.server.superlink.fleet.grpc_rere import node_auth_server_interceptor as authentication

from fedappeal.flower.superlink.held_polls import HeldPolls, Poll, asked_to_hold
from fedappeal.flower.superlink.request_sizes import most_bytes
from fedappeal.flower.superlink.same_user import REFUSED, admits_peer

_grpc_server: Any = import_module("grpc._server")
Call = Callable[[PullMessagesRequest, grpc.ServicerContext], PullMessagesResponse]


class FleetInterceptor(grpc.ServerInterceptor):  # type: ignore[misc, unused-ignore]
    """Outermost interceptor: holds polls, and refuses other users, and oversized requests unparsed.

    Args:
        polls: holds them.
        one_user_address: ``HOST:PORT`` that the server listens at where it is for one user; empty: it is for all.
    """

    def __init__(self, polls: HeldPolls, one_user_address: str = "") -> None:
        self._polls, self._one_user_address = polls, one_user_address

    def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], grpc.RpcMethodHandler | None],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler | None:
        """Return a handler that holds polls, bounds requests and checks whose a call is.

        The Fleet API has methods of one request and one reply alone.
        """
        try:
            handler = continuation(handler_call_details)
        except Exception:  # a key or time that is none makes Flower's check raise, and gRPC log pages of it
            return authentication._unary_unary_rpc_terminator("Invalid signature")
        if handler is None or (handler.unary_unary is None and not self._one_user_address):
            return handler
        if handler.unary_unary is None:
            raise TypeError(f"{handler_call_details.method} streams: nothing here can refuse it")
        answer = partial(self._of_this_user, handler.unary_unary) if self._one_user_address else handler.unary_unary
        call = handler_call_details.method.rpartition("/")[2]
        parse = partial(_parse_within, handler.request_deserializer, most_bytes(call))
        seconds = asked_to_hold(handler_call_details.invocation_metadata) if call == "PullMessages" else 0.0
        if seconds <= 0:
            return grpc.unary_unary_rpc_method_handler(answer, parse, handler.response_serializer)
        poll: Any = partial(self._poll, answer, seconds)
        poll.experimental_non_blocking = True  # gRPC does not wait for it: it may return before the call is answered
        # One response and the status: the same bytes as a unary call's.
        return grpc.unary_stream_rpc_method_handler(poll, parse, None)

    def _of_this_user(self, call: Callable[[Any, grpc.ServicerContext], Any], request: Any, context: Any) -> Any:
        # A call whose connection has ended meanwhile is no call: its address may be another process's by now.
        if not (admits_peer(self._one_user_address, context.peer()) and context.is_active()):
            context.abort(grpc.StatusCode.UNAUTHENTICATED, REFUSED)
        return call(request, context)

    def _poll(self, call: Call, seconds: float, request: PullMessagesRequest, context: Any, _respond: object) -> None:
        ask, end = partial(call, request, context), partial(_end, context)
        poll = Poll(request.node.node_id, time.monotonic() + seconds, ask, end, context.is_active)
        context.add_callback(partial(self._polls.drop, poll))
        self._polls.hold(poll)


def _parse_within(parse: Callable[[bytes], Any] | None, most: int, content: bytes) -> Any | None:
    """Return the parsed request; None, which gRPC refuses, if it is too large."""
    if len(content) > most:
        return None
    return parse(content) if parse else content


def _end(context: Any, outcome: PullMessagesResponse | Exception) -> None:
    """End a call with an answer, or with its context's status."""
    if isinstance(outcome, Exception) and context.code() is None:
        context.set_code(grpc.StatusCode.UNKNOWN)
    content = None if isinstance(outcome, Exception) else outcome.SerializeToString()
    # What gRPC's own handlers of unary calls end with. The public way out of a handler that is no longer running
    # waits for the client to read, and so would let a client that does not read keep a thread.
    _grpc_server._status(context._rpc_event, context._state, content)
