"""A SuperLink's Fleet API: bounded, polls held, and nothing handed out that is incomplete or that was lost.

Flower hands a message out once, and a poll that was held may have lost its client meanwhile: a message of which its
node says nothing afterwards is handed out once more. And a node that says that it has a message does not make the
SuperLink forget it while its objects are on their way: the ServerApp's push would fail, and with it the run.
"""

from functools import partial
from importlib import import_module
from typing import Any

import grpc  # type: ignore[import-untyped, unused-ignore]
from flwr.proto import message_pb2
from flwr.proto.fleet_pb2 import PullMessagesRequest, PullMessagesResponse, PushMessagesRequest, PushMessagesResponse

from fedappeal.flower.processes import replace_name
from fedappeal.flower.superlink.fleet_limits import LARGEST_REQUEST, LimitedFleet
from fedappeal.flower.superlink.held_polls import HeldPolls, asked_to_hold
from fedappeal.system.clock import CLOCK

_MOST_HANDED = 20_000

flower: Any = import_module("flwr.superlink.cli.flower_superlink")  # its package has a function of the same name


class GuardedFleet(LimitedFleet):
    """The calls of the Fleet API, behind the check of a node's signature; arguments as Flower's, by name.

    Args:
        polls: holds polls; it knows which messages are on their way.
    """

    def __init__(self, polls: HeldPolls, **named: Any) -> None:
        super().__init__(**named)
        self._polls = polls
        self._handed: dict[int, PullMessagesResponse] = {}
        polls.watch(self.state_factory.state())

    def PullMessages(self, request: PullMessagesRequest, context: grpc.ServicerContext) -> PullMessagesResponse:
        """Hand a message out; to the node of a held poll a second time, where it said nothing after the first."""
        if asked_to_hold(context.invocation_metadata()) <= 0:
            return super().PullMessages(request, context)
        node = request.node.node_id
        handed = self._take_back(node)
        if handed is not None and not _is_over(handed):
            return handed
        if self._polls.is_incomplete(node):
            return PullMessagesResponse()
        answer = super().PullMessages(request, context)
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

    def PullObject(self, request: message_pb2.PullObjectRequest, context: grpc.ServicerContext) -> Any:
        """Hand an object out: its node has the message."""
        self._take_back(request.node.node_id)
        return super().PullObject(request, context)

    def PushMessages(self, request: PushMessagesRequest, context: grpc.ServicerContext) -> PushMessagesResponse:
        """Take a reply's announcement: its node has the message."""
        self._take_back(request.node.node_id)
        return super().PushMessages(request, context)

    def ConfirmMessageReceived(
        self, request: message_pb2.ConfirmMessageReceivedRequest, context: grpc.ServicerContext
    ) -> Any:
        """Forget a message that its node has, unless objects of it are on their way."""
        self._take_back(request.node.node_id)
        if self._polls.is_coming(request.message_object_id):
            return message_pb2.ConfirmMessageReceivedResponse()
        return super().ConfirmMessageReceived(request, context)

    def _take_back(self, node: int) -> PullMessagesResponse | None:
        """Return what was handed to a node, and forget that."""
        with self._lock:
            return self._handed.pop(node, None)


def _is_over(handed: PullMessagesResponse) -> bool:
    about = handed.messages_list[0].metadata
    return bool(CLOCK.now() >= about.created_at + about.ttl)


def guard_fleet_api() -> None:
    """Bound the nodes of the SuperLink that this process will be, and hold their polls."""
    polls, create = HeldPolls(), flower.generic_create_grpc_server

    def outermost(*args: Any, interceptors: list[grpc.ServerInterceptor] | None = None, **named: Any) -> grpc.Server:
        return create(*args, interceptors=[polls, *(interceptors or [])], **named)

    replace_name(flower, "FleetServicer", partial(GuardedFleet, polls))
    replace_name(flower, "generic_create_grpc_server", outermost)
    replace_name(flower, "GRPC_MAX_MESSAGE_LENGTH", LARGEST_REQUEST)
