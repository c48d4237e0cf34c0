"""What one node may leave in a SuperLink's memory.

Flower's SuperLink takes requests of up to 2 GiB from any node, stores what they hold, and looks up the objects of an
announced message however they are nested. A node is bounded here by what it was sent.
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from itertools import islice
from typing import Any

import grpc  # type: ignore[import-untyped, unused-ignore]
from flwr.proto.fleet_pb2 import PullMessagesRequest, PullMessagesResponse, PushMessagesRequest
from flwr.proto.message_pb2 import (
    ObjectTree,
    PullObjectRequest,
    PullObjectResponse,
    PushObjectRequest,
    PushObjectResponse,
)
from flwr.supercore.object_store import ObjectStore

from fedappeal.flower.grid.object_tree import TreeRefused, levels
from fedappeal.flower.processes import replace_name
from fedappeal.flower.superlink.unary_calls import Before, UnaryCalls

LARGEST_REQUEST = 24 << 20
"""Bytes of one request; Flower cuts an array into chunks of at most 20 MiB."""
MOST_OBJECTS = 20_000
"""Objects of one reply."""
LARGEST_ANNOUNCEMENT = 64 << 10
"""Bytes of a reply's metadata and of its error text."""
AT_LEAST, TIMES = 8 << 20, 4
"""Bytes that a node's replies may take up at one time: a fixed number, and a multiple of its largest message."""
REPLIES_AT_LEAST, REPLIES_EACH = 16, 4
"""Replies that a node may announce: a fixed number, and a number for each message that it was sent."""
MOST_NODES = 20_000
"""Nodes that are remembered; one of whose replies something is stored is not forgotten."""
_LOOKED_AT = 100

flower: Any = import_module("flwr.superlink.cli.flower_superlink")  # its package has a function of the same name

Call = Callable[[Any, grpc.ServicerContext], Any]


@dataclass
class _Node:
    """What one node was sent, and what of its replies is stored."""

    messages: int = 0
    replies: int = 0
    sent: dict[str, int] = field(default_factory=dict)
    largest: int = 0
    stored: dict[str, int] = field(default_factory=dict)


class FleetLimits(UnaryCalls):
    """Bounds on each node's replies, behind the check of its signature.

    Args:
        store: the SuperLink's.
    """

    def __init__(self, store: Callable[[], ObjectStore]) -> None:
        self._store = store
        self._nodes: dict[int, _Node] = {}
        self._lock = threading.Lock()

    def before(self, method: str, metadata: Any) -> Before | None:
        """Return the bound on a call."""
        bounds: dict[str, Before] = {
            "PullMessages": self._pull_messages,
            "PullObject": self._pull_object,
            "PushMessages": self._push_messages,
            "PushObject": self._push_object,
        }
        return bounds.get(method)

    def _pull_messages(
        self, call: Call, request: PullMessagesRequest, context: grpc.ServicerContext
    ) -> PullMessagesResponse:
        answer: PullMessagesResponse = call(request, context)
        if answer.messages_list:
            with self._lock:
                node = self._node(request.node.node_id)
                node.messages += 1
                node.sent = {}
        return answer

    def _pull_object(
        self, call: Call, request: PullObjectRequest, context: grpc.ServicerContext
    ) -> PullObjectResponse:
        answer: PullObjectResponse = call(request, context)
        if answer.object_content:  # an id that is made up is not kept
            with self._lock:
                node = self._node(request.node.node_id)
                node.sent[request.object_id] = len(answer.object_content)
                node.largest = max(node.largest, sum(node.sent.values()))
        return answer

    def _push_messages(self, call: Call, request: PushMessagesRequest, context: grpc.ServicerContext) -> Any:
        with self._lock:
            node = self._node(request.node.node_id)
            node.replies += 1
            allowed = REPLIES_AT_LEAST + REPLIES_EACH * node.messages
        if problem := self._problem(request, node.replies, allowed):
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, problem)
        return call(request, context)

    def _problem(self, request: PushMessagesRequest, replies: int, allowed: int) -> str:
        """Return why an announcement is refused; empty where it is not."""
        if replies > allowed:
            return f"{replies} replies are more than the {allowed} that are allowed"
        if len(request.messages_list) != 1 or len(request.message_object_trees) != 1:
            return "one reply at a time, with the tree of its objects"
        about = request.messages_list[0].metadata
        if not about.reply_to_message_id or about.src_node_id != request.node.node_id:
            # Flower would store it as an instruction of the server's, to whichever node it names.
            return "a node sends replies only, and only its own"
        if (size := request.messages_list[0].ByteSize()) > LARGEST_ANNOUNCEMENT:
            return f"a reply announced in {size} bytes is not allowed: up to {LARGEST_ANNOUNCEMENT}"
        try:
            announced = levels(request.message_object_trees[0], MOST_OBJECTS)
        except TreeRefused as error:
            return str(error)
        if any(self._is_another(node) for level in announced for node in level):
            return "its reply names an object that is stored with other children"
        return ""

    def _is_another(self, announced: ObjectTree) -> bool:
        """Whether an object is stored with other children than are announced.

        Flower's store in memory goes by the stored ones, so that a few announcements make a tree of any size; its
        store in a database refuses it.
        """
        entries = getattr(self._store(), "store", None)
        stored = entries.get(announced.object_id) if entries is not None else None
        return stored is not None and stored.child_object_ids != [child.object_id for child in announced.children]

    def _push_object(
        self, call: Call, request: PushObjectRequest, context: grpc.ServicerContext
    ) -> PushObjectResponse:
        size, object_id = len(request.object_content), request.object_id
        with self._lock:
            node = self._node(request.node.node_id)
            if not self._has_room(node, size):
                return PushObjectResponse(stored=False)
            node.stored[object_id] = size
        answer: PushObjectResponse = call(request, context)
        if not answer.stored:
            with self._lock:
                node.stored.pop(object_id, None)
        return answer

    def _has_room(self, node: _Node, size: int) -> bool:
        if not (node.messages or node.largest):  # sent what it answers before this process began
            return True
        most = AT_LEAST + TIMES * node.largest
        if sum(node.stored.values()) + size > most:
            self._forget_deleted(node)
        return sum(node.stored.values()) + size <= most

    def _forget_deleted(self, node: _Node) -> None:
        store = self._store()
        node.stored = {object_id: size for object_id, size in node.stored.items() if object_id in store}

    def _node(self, node_id: int) -> _Node:
        """Return what is known of a node, and forget one that was not heard of for longest. The lock is held."""
        node = self._nodes.setdefault(node_id, _Node())
        self._nodes[node_id] = self._nodes.pop(node_id)  # the last one heard of is the last in order
        if len(self._nodes) > MOST_NODES:
            for oldest_id in list(islice(self._nodes, min(_LOOKED_AT, len(self._nodes) - 1))):
                oldest = self._nodes.pop(oldest_id)
                self._forget_deleted(oldest)
                if not oldest.stored:
                    break
                self._nodes[oldest_id] = oldest
        return node


def limit_fleet_api() -> None:
    """Bound each node of the SuperLink that this process will be."""
    run = flower._run_fleet_api_grpc_rere

    def start(*, interceptors: Sequence[grpc.ServerInterceptor] | None = None, **named: Any) -> grpc.Server:
        behind = [*(interceptors or []), FleetLimits(named["objectstore_factory"].store)]
        return run(interceptors=behind, **named)

    replace_name(flower, "_run_fleet_api_grpc_rere", start)
    replace_name(flower, "GRPC_MAX_MESSAGE_LENGTH", LARGEST_REQUEST)
