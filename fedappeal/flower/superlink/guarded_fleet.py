"""A SuperLink's Fleet API with bounds on each node's memory.

No message is handed out incomplete, and none is lost.

Flower's SuperLink takes requests of up to 2 GiB from any node, stores what they hold, and looks up the objects of an
announced message however they are nested. A node is bounded here by what it was sent.

Flower hands a message out once, and a poll that was held may have lost its client meanwhile: a message of which its
node says nothing afterwards is handed out once more. And a node that says that it has a message does not make the
SuperLink forget it while its objects are on their way: the ServerApp's push would fail, and with it the run.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

import grpc  # type: ignore[import-untyped, unused-ignore]
from flwr.common.constant import PUBLIC_KEY_HEADER
from flwr.proto import fleet_pb2, message_pb2
from flwr.proto.fleet_pb2 import PullMessagesRequest, PullMessagesResponse, PushMessagesRequest, PushMessagesResponse
from flwr.proto.message_pb2 import PullObjectRequest, PullObjectResponse, PushObjectRequest, PushObjectResponse
from flwr.proto.run_pb2 import GetRunRequest, GetRunResponse
from flwr.supercore.error import ApiErrorCode, FlowerError

from fedappeal.flower.grid.assembly import TreeRefused, levels
from fedappeal.flower.node.fleet import NO_PLACE
from fedappeal.flower.processes import replace_name
from fedappeal.flower.superlink.database_cache import cache_database
from fedappeal.flower.superlink.held_polls import HeldPolls, asked_to_hold
from fedappeal.flower.superlink.node_places import NodePlaces
from fedappeal.flower.superlink.request_sizes import LARGEST_REQUEST
from fedappeal.flower.superlink.superlink_log import REFUSED, RateLimitedLog
from fedappeal.flower.versions import FLEET_OVER_GRPC, fleet_handler, fleet_servicer
from fedappeal.protocol.proof import client_id_of
from fedappeal.system.clock import CLOCK
from fedappeal.system.memory import memory_bytes

if TYPE_CHECKING:
    from flwr.server.superlink.fleet.grpc_rere.fleet_servicer import FleetServicer
else:
    FleetServicer = fleet_servicer()

MOST_OBJECTS = 20_000
"""Objects of one reply."""
LARGEST_ANNOUNCEMENT = 64 << 10
"""Bytes of a reply's metadata and of its error text."""
AT_LEAST, TIMES = 8 << 20, 4
"""Bytes that a node's replies may take up at one time: a fixed number, and a multiple of its largest message."""
MOST_STORED = memory_bytes() // 2
"""Bytes of all nodes' replies together: half of the memory that there is."""
RECOUNTED_EVERY = 1.0
"""Seconds between two looks at what is still stored, of all nodes or of one, once its bound is reached."""
REPLIES_AT_LEAST, REPLIES_EACH = 16, 4
"""Replies of a node that are stored: a fixed number, and a number for each message that it was sent."""
MOST_NODES = 20_000
"""Nodes that are remembered; one of whose replies something is stored is not forgotten."""
_LOOKED_AT = 100
_LOG = RateLimitedLog()

flower: Any = import_module("flwr.superlink.cli.flower_superlink")  # its package has a function of the same name


@dataclass
class _NodeState:
    """A node's messages that were handed out, and the stored bytes of its replies.

    The latest message may have been lost.
    """

    handed: PullMessagesResponse | None = None
    messages: int = 0
    replies: int = 0
    sent: dict[str, int] = field(default_factory=dict)
    largest: int = 0
    stored: dict[str, int] = field(default_factory=dict)
    size: int = 0
    recounted: float = float("-inf")


class GuardedFleet(FleetServicer):
    """The Fleet API's calls, each after a check of the node's signature.

    Arguments as Flower's, by name.

    Args:
        polls: holds polls; it knows which messages are on their way.
    """

    def __init__(self, polls: HeldPolls, **keywords: Any) -> None:
        super().__init__(**keywords)
        self._polls = polls
        self._nodes: dict[int, _NodeState] = {}
        self._stored = 0
        self._recounted = float("-inf")
        self._lock = threading.Lock()
        state = self.state_factory.state()
        cache_database(state)
        polls.watch(state)
        self._places = NodePlaces(state)

    def RegisterNode(
        self, request: fleet_pb2.RegisterNodeFleetRequest, context: grpc.ServicerContext
    ) -> fleet_pb2.RegisterNodeFleetResponse:
        """Register the key that signed the call, where there is a place for it."""
        _check_signer(request.public_key, context)
        # With the operator's keys alone Flower refuses; a key that is registered already has its place.
        known = (
            self.enable_supernode_auth
            or self.state_factory.state().get_node_id_by_public_key(request.public_key) is not None
        )
        if not (known or self._places.take()):
            context.abort(grpc.StatusCode.UNAVAILABLE, NO_PLACE)
        return super().RegisterNode(request, context)

    def ActivateNode(
        self, request: fleet_pb2.ActivateNodeRequest, context: grpc.ServicerContext
    ) -> fleet_pb2.ActivateNodeResponse:
        """Bring the node online whose key signed the call.

        Flower brings any node online that is named, for up to an hour. A refusal names the client and the reason.
        """
        _check_signer(request.public_key, context)
        try:
            return super().ActivateNode(request, context)
        except FlowerError as error:
            if error.code == ApiErrorCode.FLEET_NODE_ACTIVATION_FAILED:
                node_id = self.state_factory.state().get_node_id_by_public_key(request.public_key)
                why = "is not registered" if node_id is None else "counts as online still"
                error.message = f"{REFUSED}{client_id_of(request.public_key)} {why}"
            raise

    def UnregisterNode(
        self, request: fleet_pb2.UnregisterNodeFleetRequest, context: grpc.ServicerContext
    ) -> fleet_pb2.UnregisterNodeFleetResponse:
        """Strike off the node whose key signed the call, also one that its operator registered, unlike Flower."""
        answer: fleet_pb2.UnregisterNodeFleetResponse = fleet_handler("unregister_node")(
            request=request, state=self.state_factory.state(), enable_supernode_auth=False
        )
        return answer

    def PullMessages(self, request: PullMessagesRequest, context: grpc.ServicerContext) -> PullMessagesResponse:
        """Hand out a message; to a held poll's node again, if it did not confirm."""
        node_id = request.node.node_id
        holds = asked_to_hold(context.invocation_metadata()) > 0
        if holds:
            handed = self._take_back(node_id)
            if handed is not None and not _is_over(handed):
                return handed
        answer = super().PullMessages(request, context)
        if answer.messages_list:
            with self._lock:
                node = self._node(node_id)
                node.messages += 1
                node.sent = {}
                node.handed = answer if holds else None
        return answer

    def GetRun(self, request: GetRunRequest, context: grpc.ServicerContext) -> GetRunResponse:
        """Return a run; the refusal of an ended one says how it ended.

        Flower keeps that to itself.
        """
        try:
            return super().GetRun(request, context)
        except FlowerError as error:
            if error.code == ApiErrorCode.FLEET_RUN_STATUS_NOT_ALLOWED:
                run_id = request.run_id
                error.public_details = self.state_factory.state().get_run_status({run_id})[run_id].sub_status
            raise

    def PullObject(self, request: PullObjectRequest, context: grpc.ServicerContext) -> PullObjectResponse:
        """Hand an object out, and record its size; its node has the message."""
        self._take_back(request.node.node_id)
        answer = super().PullObject(request, context)
        if answer.object_content:  # an id that is made up is not kept
            with self._lock:
                node = self._node(request.node.node_id)
                node.sent[request.object_id] = len(answer.object_content)
                node.largest = max(node.largest, sum(node.sent.values()))
        return answer

    def PushMessages(self, request: PushMessagesRequest, context: grpc.ServicerContext) -> PushMessagesResponse:
        """Accept or refuse a reply's announcement: its node has the message.

        What is counted is what may leave something: neither a repeat nor what is refused, here or by Flower. Where
        Flower raises, part of a tree may be registered.
        """
        self._take_back(request.node.node_id)
        problem, is_repeat = "", False
        try:
            is_repeat = self._is_repeat(request)
        except TreeRefused as error:
            problem = str(error)
        with self._lock:
            node = self._node(request.node.node_id)
            allowed = REPLIES_AT_LEAST + REPLIES_EACH * node.messages
            if not problem and node.replies >= allowed:
                problem = f"more than the {allowed} replies that are allowed"
            if not problem:
                node.replies += 1
        if problem:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, problem)
        answer = super().PushMessages(request, context)
        if not answer.objects_to_push:  # Flower would keep the session until its run ends
            self.state_factory.state()._cleanup_push_session(answer.session_id, cleanup_messages=False)
        if is_repeat or not answer.objects_to_push:
            with self._lock:
                node.replies -= 1
        return answer

    def PushObject(self, request: PushObjectRequest, context: grpc.ServicerContext) -> PushObjectResponse:
        """Store an object of a reply, where its node has room."""
        size, object_id = len(request.object_content), request.object_id
        with self._lock:
            node = self._node(request.node.node_id)
            if not self._has_room(node, size - node.stored.get(object_id, 0)):
                return PushObjectResponse(stored=False)
            self._count(node, object_id, size)
        stored = False
        try:
            answer = super().PushObject(request, context)
            stored = answer.stored
            return answer
        finally:
            # Flower refuses an object that it has already: that one still takes up its bytes
            with self._lock:  # held for both: another push of the object may come between them
                there = size if stored else len(self.objectstore_factory.store().get(object_id) or b"")
                self._count(node, object_id, there)

    def ConfirmMessageReceived(
        self, request: message_pb2.ConfirmMessageReceivedRequest, context: grpc.ServicerContext
    ) -> Any:
        """Forget a message that its node has, unless its objects are on their way."""
        self._take_back(request.node.node_id)
        if self._polls.is_coming(request.message_object_id):
            return message_pb2.ConfirmMessageReceivedResponse()
        return super().ConfirmMessageReceived(request, context)

    def _take_back(self, node: int) -> PullMessagesResponse | None:
        """Return the answer handed to a node, and forget it."""
        with self._lock:
            state = self._nodes.get(node, _NodeState())
            handed, state.handed = state.handed, None
            return handed

    def _is_repeat(self, request: PushMessagesRequest) -> bool:
        """Return whether every object of the announced reply is stored already.

        Then it is not counted again.

        Raises:
            TreeRefused: the announcement is refused; the message says why.
        """
        if len(request.messages_list) != 1 or len(request.message_object_trees) != 1:
            raise TreeRefused("one reply at a time, with the tree of its objects")
        about, tree = request.messages_list[0].metadata, request.message_object_trees[0]
        if not about.reply_to_message_id or about.src_node_id != request.node.node_id:
            # Flower would store it as an instruction of the server's, to whichever node it names.
            raise TreeRefused("a node sends replies only, and only its own")
        if (size := request.messages_list[0].ByteSize()) > LARGEST_ANNOUNCEMENT:
            raise TreeRefused(f"a reply announced in {size} bytes is not allowed: up to {LARGEST_ANNOUNCEMENT}")
        announced = levels(tree, MOST_OBJECTS)
        # Flower's store in memory goes by the children that it has, so that a few announcements make a tree of any
        # size; its store in a database refuses other ones.
        stored = getattr(self.objectstore_factory.store(), "store", {})
        # Flower keeps an upload for each root: an object that another message has may be none.
        is_repeat: bool = tree.object_id == about.message_id
        for node in chain.from_iterable(announced):
            entry = stored.get(node.object_id)
            is_repeat = is_repeat and entry is not None
            if entry is not None and entry.child_object_ids != [child.object_id for child in node.children]:
                raise TreeRefused("its reply names an object that is stored with other children")
        return is_repeat

    def _has_room(self, node: _NodeState, size: int) -> bool:
        if self._stored + size > MOST_STORED:
            if time.monotonic() - self._recounted >= RECOUNTED_EVERY:
                for other in self._nodes.values():
                    self._forget_deleted(other)
                self._recounted = time.monotonic()
            if self._stored + size > MOST_STORED:
                _LOG.warn(f"replies are refused: those of all nodes may take up {MOST_STORED // 10**6:,} MB together")
                return False
        if not (node.messages or node.largest):  # sent what it answers before this process began
            return True
        most = AT_LEAST + TIMES * node.largest
        if node.size + size > most and time.monotonic() - node.recounted >= RECOUNTED_EVERY:
            self._forget_deleted(node)
            node.recounted = time.monotonic()
        return node.size + size <= most

    def _forget_deleted(self, node: _NodeState) -> None:
        store = self.objectstore_factory.store()
        for object_id in [object_id for object_id in node.stored if object_id not in store]:
            self._count(node, object_id, 0)

    def _count(self, node: _NodeState, object_id: str, size: int) -> None:
        """Record the stored bytes of a node's object; 0 if it is not stored.

        The lock is held.
        """
        more = size - node.stored.pop(object_id, 0)
        node.size += more
        self._stored += more
        if size:
            node.stored[object_id] = size

    def _node(self, node_id: int) -> _NodeState:
        """Return a node's state; forget the one not heard of for longest.

        The lock is held.
        """
        node = self._nodes.setdefault(node_id, _NodeState())
        self._nodes[node_id] = self._nodes.pop(node_id)  # the last one heard of is the last in order
        if len(self._nodes) > MOST_NODES:
            for oldest_id in list(islice(self._nodes, min(_LOOKED_AT, len(self._nodes) - 1))):
                oldest = self._nodes.pop(oldest_id)
                self._forget_deleted(oldest)
                if not oldest.stored:
                    break
                self._nodes[oldest_id] = oldest
        return node


def _check_signer(public_key: bytes, context: grpc.ServicerContext) -> None:
    """Refuse a call about another key than the verified signer's."""
    if dict(context.invocation_metadata()).get(PUBLIC_KEY_HEADER) != public_key:
        context.abort(grpc.StatusCode.UNAUTHENTICATED, "Invalid node ID")


def _is_over(handed: PullMessagesResponse) -> bool:
    about = handed.messages_list[0].metadata
    return bool(CLOCK.now() >= about.created_at + about.ttl)


def guard_fleet_api(
    serve_too: Callable[[GuardedFleet, HeldPolls], None] | None = None,
    one_user_address: str = "",
    keys_only: bool = False,
) -> None:
    """Bound the nodes of this process's SuperLink, and hold their polls.

    Args:
        serve_too: serves the same calls, and the same polls, over HTTP: beside gRPC, or alone where Flower has none.
        one_user_address: ``HOST:PORT`` at which gRPC serves one user; empty: it serves all.
        keys_only: whether registered keys alone are admitted; over gRPC Flower says it.
    """
    polls = HeldPolls()

    def make(**keywords: Any) -> GuardedFleet:
        fleet = GuardedFleet(polls, **keywords)
        if serve_too:
            serve_too(fleet, polls)
        return fleet

    if not FLEET_OVER_GRPC:
        if serve_too is not None:
            _make_with_factories(partial(make, enable_supernode_auth=keys_only))
        return
    from fedappeal.flower.superlink.fleet_interceptor import FleetInterceptor

    create = flower.generic_create_grpc_server

    def outermost(*args: Any, interceptors: list[grpc.ServerInterceptor] | None = None, **rest: Any) -> grpc.Server:
        return create(*args, interceptors=[FleetInterceptor(polls, one_user_address), *(interceptors or [])], **rest)

    replace_name(flower, "FleetServicer", make)
    replace_name(flower, "generic_create_grpc_server", outermost)
    replace_name(flower, "GRPC_MAX_MESSAGE_LENGTH", LARGEST_REQUEST)


def _make_with_factories(make: Callable[..., GuardedFleet]) -> None:
    """Make the Fleet API when Flower has made what holds a SuperLink's state and objects."""
    superlink_app = import_module("flwr.superlink.main")
    factories = superlink_app.get_objectstore_linkstate_factories

    def and_fleet(*args: Any, **keywords: Any) -> Any:
        objects, states = factories(*args, **keywords)
        make(state_factory=states, objectstore_factory=objects)
        return objects, states

    replace_name(superlink_app, "get_objectstore_linkstate_factories", and_fleet)
