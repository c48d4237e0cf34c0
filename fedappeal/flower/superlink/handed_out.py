"""What the node of a held poll is handed: nothing that is incomplete, and what it may have missed once more.

Flower hands a message out once, and a poll that was held may have lost its client meanwhile: a message of which its
node says nothing afterwards is handed out once more. And a node that says that it has a message does not make the
SuperLink forget it while its objects are on their way: the ServerApp's push would fail, and with it the run.
"""

import threading
from collections.abc import Callable
from typing import Any

import grpc  # type: ignore[import-untyped, unused-ignore]
from flwr.proto.fleet_pb2 import PullMessagesRequest, PullMessagesResponse
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, ConfirmMessageReceivedResponse

from fedappeal.flower.node.fleet import HOLD_HEADER, LONGEST_HOLD
from fedappeal.flower.superlink.unary_calls import Before, UnaryCalls
from fedappeal.system.clock import CLOCK

_ABOUT_A_MESSAGE = ("PullObject", "PushMessages", "ConfirmMessageReceived")
"""Calls of a node that has got the message that it was handed."""
_MOST_HANDED = 20_000

Call = Callable[[PullMessagesRequest, grpc.ServicerContext], PullMessagesResponse]


class HandedOut(UnaryCalls):
    """What the node of a held poll is handed; it has to be behind the check of the node's signature.

    Args:
        incomplete: whether a node has a message whose objects are on their way.
        coming: whether this object is a message's own, and objects of that message are on their way.
    """

    def __init__(self, incomplete: Callable[[int], bool], coming: Callable[[str], bool]) -> None:
        self._incomplete = incomplete
        self._coming = coming
        self._lock = threading.Lock()
        self._handed: dict[int, PullMessagesResponse] = {}

    def before(self, method: str, metadata: Any) -> Before | None:
        """Return what stands before polls that may be held, and what notes that a node has its message."""
        if method in _ABOUT_A_MESSAGE:
            return self._has_message
        return self._pull if method == "PullMessages" and asked_to_hold(metadata) > 0 else None

    def _pull(self, call: Call, request: PullMessagesRequest, context: grpc.ServicerContext) -> PullMessagesResponse:
        node = request.node.node_id
        with self._lock:
            handed = self._handed.pop(node, None)
        if handed is not None and not _is_over(handed):
            return handed
        if self._incomplete(node):
            return PullMessagesResponse()
        answer = call(request, context)
        if answer.messages_list:
            with self._lock:
                self._handed[node] = answer
                # Of nodes that are gone; a lifetime is about the same for all, so the oldest are over first.
                while len(self._handed) > 1:
                    oldest = next(iter(self._handed))
                    if len(self._handed) <= _MOST_HANDED and not _is_over(self._handed[oldest]):
                        break
                    del self._handed[oldest]
        return answer

    def _has_message(self, call: Callable[..., Any], request: Any, context: grpc.ServicerContext) -> Any:
        with self._lock:
            self._handed.pop(request.node.node_id, None)
        if isinstance(request, ConfirmMessageReceivedRequest) and self._coming(request.message_object_id):
            return ConfirmMessageReceivedResponse()
        return call(request, context)


def _is_over(handed: PullMessagesResponse) -> bool:
    about = handed.messages_list[0].metadata
    return bool(CLOCK.now() >= about.created_at + about.ttl)


def asked_to_hold(metadata: Any) -> float:
    """Return the seconds for which a poll may be held; 0 where it does not say so."""
    try:
        seconds = next(float(value) for key, value in metadata or () if key == HOLD_HEADER)
    except (StopIteration, ValueError):
        return 0.0
    return min(seconds, LONGEST_HOLD) if seconds > 0 else 0.0
