"""The calls of the Fleet API, over gRPC or HTTP.

Requests and answers are protobuf; a request is signed with the node's key.

A transport makes the calls (`GrpcFleet`, `HttpFleet`) and turns its refusals into the errors of `fleet`. Flower's own
connections, `grpc_request_response` and `http_request_response`, retry for ever and hide the reason, end the whole
process where an activation is refused (``flwr_exit``) or a node id is not known (they send it SIGINT), swallow
exceptions of their body and raise a BaseException for a run that was stopped. The protocol below them, twelve calls
of protobuf messages, has been steady.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from http import HTTPStatus
from itertools import islice
from typing import Any

from cryptography.hazmat.primitives.asymmetric import ec
from flwr.common.serde import run_from_proto
from flwr.proto import fab_pb2, fleet_pb2, heartbeat_pb2, message_pb2, run_pb2
from flwr.proto.node_pb2 import Node
from flwr.supercore.error import ApiErrorCode

from fedappeal.flower.messages import known_error
from fedappeal.flower.node import fleet
from fedappeal.flower.node.fleet import Announcement, RunInfo, Upload
from fedappeal.flower.node.objects import Parcel, announcement
from fedappeal.flower.node.signing import Headers, Signer

TIMEOUT = fleet.LONGEST_HOLD + 10.0
"""Seconds that a call may take."""
OBJECT_TIMEOUT = 600.0
CLOCK_TIMEOUT = 10.0
LOOK_UP = 0.25
"""Seconds between two questions whether a held call is still waited for."""
SIDE_BY_SIDE = 8
"""Calls at one time: the SuperLink holds what is on its way, of a large model as much again as its store."""
SILENT = 20
"""Seconds after which the system ends a connection whose other end acknowledges nothing."""
LARGEST_OBJECT = 32 * 2**20
"""Most bytes of one answer that are taken in; Flower cuts arrays into pieces of 5 MiB."""
UNKNOWN_NODE = "Invalid node ID"
WRONG_TIME = "Invalid timestamp"
NO_ANSWER = (HTTPStatus.BAD_GATEWAY, HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.GATEWAY_TIMEOUT)
_POLL = "PullMessages"
_NOT_ADMITTED = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN, HTTPStatus.PRECONDITION_FAILED)
_HEARTBEAT_TIMEOUT = 5.0
_SIGNATURE_LASTS = 5.0  # seconds for which one signature serves; it is valid for 300 s
_REFUSALS: dict[int, type[fleet.NotAdmitted]] = {
    ApiErrorCode.PUBLIC_KEY_ALREADY_IN_USE: fleet.AlreadyRegistered,
    ApiErrorCode.FLEET_SUPERNODE_REGISTRATION_DISABLED: fleet.KeyRequired,
    ApiErrorCode.FLEET_NODE_ACTIVATION_FAILED: fleet.NotActivated,
}


class FleetApi(ABC):
    """The calls of the Fleet API at one SuperLink, signed with one node's key.

    Every call raises `NotConnected` (or a subclass) where the SuperLink does not answer or does not admit the node,
    and `MessageDropped` where it is about a run that has ended.

    Attributes:
        address: ``HOST:PORT`` of the SuperLink.
    """

    def __init__(
        self, address: str, key: ec.EllipticCurvePrivateKey, *, insecure: bool, root_certificates: bytes | None
    ) -> None:
        """Prepare the connection; nothing is sent yet.

        Args:
            address: ``HOST:PORT``.
            key: the node's private key.
            insecure: plaintext.
            root_certificates: CA certificate (PEM) for TLS; None: the system's.
        """
        self.address = address
        self._signer = Signer(key)
        self._signed_at = -_SIGNATURE_LASTS
        self._headers: Headers = []
        self._renewed = 0
        self._prepare(insecure, root_certificates)

    @abstractmethod
    def _prepare(self, insecure: bool, root_certificates: bytes | None) -> None:
        """Prepare the transport's connection."""

    def _renew(self) -> None:
        """Let no later call use what is connected now, over which an answer did not come in time.

        A router may have forgotten it without a word. A held poll is given up; any other call goes on.
        """
        self._renewed += 1

    @abstractmethod
    def _call(self, method: str, request: Any, timeout: float = TIMEOUT) -> Any:
        """Make a call, and return its answer."""

    @abstractmethod
    def _begin(self, method: str, request: Any, hold: float = 0.0) -> Any:
        """Begin a call about an object, or one that may be held; return a future."""

    @abstractmethod
    def _give_up(self, call: Any) -> None:
        """Stop waiting for a held call."""

    @abstractmethod
    def pass_when_signed(self, shifts: Sequence[float]) -> list[bool]:
        """Return whether calls pass when signed with times shifted by these seconds."""

    @abstractmethod
    def close(self) -> None:
        """Close the connection, without a word to the SuperLink."""

    def register(self) -> None:
        """Register the key.

        Raises `AlreadyRegistered`, or `KeyRequired` where the operator does that.
        """
        self._call("RegisterNode", fleet_pb2.RegisterNodeFleetRequest(public_key=self._signer.public_key))

    def unregister(self, node_id: int, timeout: float) -> None:
        """Have the SuperLink forget the key."""
        self._call("UnregisterNode", fleet_pb2.UnregisterNodeFleetRequest(node_id=node_id), timeout)

    def activate(self, heartbeat_interval: float) -> int:
        """Go online, and return the node id.

        Raises `NotActivated` where the key is not known or is online.
        """
        request = fleet_pb2.ActivateNodeRequest(
            public_key=self._signer.public_key, heartbeat_interval=heartbeat_interval
        )
        return int(self._call("ActivateNode", request).node_id)

    def deactivate(self, node_id: int, timeout: float = TIMEOUT) -> None:
        """Go offline."""
        self._call("DeactivateNode", fleet_pb2.DeactivateNodeRequest(node_id=node_id), timeout)

    def heartbeat(self, node_id: int, heartbeat_interval: float) -> bool:
        """Stay online for twice the interval; False where the node is not known."""
        request = heartbeat_pb2.SendNodeHeartbeatRequest(
            node=Node(node_id=node_id), heartbeat_interval=heartbeat_interval
        )
        return bool(self._call("SendNodeHeartbeat", request, _HEARTBEAT_TIMEOUT).success)

    def pull(self, node_id: int, hold: float = 0.0, waits: Callable[[], bool] = fleet.always) -> Announcement | None:
        """Return the node's oldest message, handed out once; None if there is none.

        Args:
            node_id: the node.
            hold: seconds for which the SuperLink may hold the question until there is one, up to `LONGEST_HOLD`.
            waits: asked every quarter of a second meanwhile; False: the message is no longer waited for.

        Raises:
            MessageDropped: where what came is no message.
        """
        request = fleet_pb2.PullMessagesRequest(node=Node(node_id=node_id))
        answer = self._poll_answer(request, hold, waits) if hold > 0 else self._call(_POLL, request)
        if answer is None or not answer.messages_list:
            return None
        try:
            return announcement(answer.messages_list[0], answer.message_object_trees[0])
        except Exception as error:  # a hostile tree or head raises almost anything
            raise fleet.MessageDropped(f"what came is no message: {type(error).__name__}") from None

    def pull_objects(self, node_id: int, run_id: int, object_ids: Sequence[str]) -> dict[str, bytes]:
        """Return the contents that the server has sent so far.

        Raises:
            MessageDropped: where one is gone; ObjectTooLarge where one is larger than this connection takes in.
        """
        node = Node(node_id=node_id)
        requests = (
            message_pb2.PullObjectRequest(node=node, run_id=run_id, object_id=object_id) for object_id in object_ids
        )
        answers = self._call_all("PullObject", requests)
        if not all(answer.object_found for answer in answers):
            raise fleet.MessageDropped("the SuperLink does not have all of it any more")
        pairs = zip(object_ids, answers, strict=True)
        return {object_id: answer.object_content for object_id, answer in pairs if answer.object_available}

    def confirm(self, node_id: int, run_id: int, object_id: str) -> None:
        """Have the SuperLink forget a message and its objects."""
        request = message_pb2.ConfirmMessageReceivedRequest(
            node=Node(node_id=node_id), run_id=run_id, message_object_id=object_id
        )
        self._call("ConfirmMessageReceived", request)

    def push(self, node_id: int, parcel: Parcel, runtime_s: float) -> Upload:
        """Announce a reply; its objects follow by `push_objects`."""
        request = fleet_pb2.PushMessagesRequest(
            node=Node(node_id=node_id),
            messages_list=[parcel.message],
            message_object_trees=[parcel.tree],
            clientapp_runtime_list=[runtime_s],
        )
        answer = self._call("PushMessages", request)
        return Upload(answer.session_id, parcel.contents(set(answer.objects_to_push)))

    def push_objects(self, node_id: int, run_id: int, upload: Upload) -> None:
        """Send the objects of a reply; `MessageDropped` where the SuperLink did not store one."""
        node = Node(node_id=node_id)
        requests = (
            message_pb2.PushObjectRequest(
                node=node, run_id=run_id, object_id=object_id, object_content=content, session_id=upload.session_id
            )
            for object_id, content in upload.objects.items()
        )
        if not all(answer.stored for answer in self._call_all("PushObject", requests)):
            raise fleet.MessageDropped("the SuperLink did not store the reply")

    def get_run(self, node_id: int, run_id: int) -> RunInfo:
        """Return the place of a run's settings."""
        request = run_pb2.GetRunRequest(node=Node(node_id=node_id), run_id=run_id)
        run = run_from_proto(self._call("GetRun", request).run)
        return RunInfo(run.fab_hash, run.override_config)

    def get_fab(self, node_id: int, run_id: int, fab_hash: str) -> bytes:
        """Return a run's bundle."""
        request = fab_pb2.GetFabRequest(node=Node(node_id=node_id), hash_str=fab_hash, run_id=run_id)
        return bytes(self._call("GetFab", request).fab.content)

    def _poll_answer(self, request: Any, hold: float, waits: Callable[[], bool]) -> Any | None:
        """Return the answer to a held poll; None if it is no longer waited for."""
        call, renewed = self._begin(_POLL, request, hold), self._renewed
        try:
            while waits():
                with suppress(TimeoutError):
                    return self._result(call, LOOK_UP)
                if self._renewed != renewed:
                    raise self._error(HTTPStatus.SERVICE_UNAVAILABLE, "", "")
        finally:
            self._give_up(call)
        return None

    def _call_all(self, method: str, requests: Iterable[Any]) -> list[Any]:
        """Make calls, some side by side; return all answers.

        Requests are made as their turn comes.
        """
        coming, answers = iter(requests), list[Any]()
        while some := list(islice(coming, SIDE_BY_SIDE)):
            calls = [self._begin(method, request) for request in some]
            try:
                answers += map(self._result, calls)
            finally:
                for call in calls:
                    call.cancel()
        return answers

    def _result(self, call: Any, timeout: float | None = None) -> Any:
        """Return a future's answer; TimeoutError after ``timeout`` seconds.

        None: as long as the call may take.
        """
        return call.result(timeout)

    def _sign(self, hold: float = 0.0) -> Headers:
        """Return a call's headers; ``hold``: seconds for which the SuperLink may hold it."""
        if time.monotonic() - self._signed_at >= _SIGNATURE_LASTS:
            self._headers = self._signer.headers()
            self._signed_at = time.monotonic()
        return [*self._headers, (fleet.HOLD_HEADER, f"{hold:g}")] if hold else self._headers

    def _error(self, status: int, details: str, name: str) -> Exception:
        """Return the error that a refused call is.

        Args:
            status: of the refusal, in HTTP's numbers.
            details: what the SuperLink says, one of Flower's errors or a text.
            name: what the transport calls the status.
        """
        flower_error, the_superlink = known_error(details), f"the SuperLink at {self.address}"
        text = flower_error.message if flower_error else " ".join(details.split())[:300]
        if status == HTTPStatus.FORBIDDEN and flower_error:
            how = flower_error.public_details or ""
            return fleet.RunEnded(f"its run has ended ({text})", how if how in fleet.ENDS else "")
        if status == HTTPStatus.UNAUTHORIZED and UNKNOWN_NODE in text:
            return fleet.NodeForgotten(f"{the_superlink} does not know this node any more")
        if status == HTTPStatus.UNAUTHORIZED and WRONG_TIME in text:
            self._signed_at = -_SIGNATURE_LASTS  # the next call is signed anew
            return fleet.WrongClock(f"this machine's clock is not that of {the_superlink}: set it")
        if flower_error and flower_error.code in _REFUSALS:
            return _REFUSALS[flower_error.code](text)
        if status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
            most = f"an answer of more than {LARGEST_OBJECT // 2**20} MiB"
            return fleet.ObjectTooLarge(f"{most}, or a request that is too large for {the_superlink}, is not allowed")
        if status in _NOT_ADMITTED:
            return fleet.NotAdmitted(f"{the_superlink} does not admit this node: {text}")
        if fleet.NO_PLACE in text:
            return fleet.NotConnected(f"{the_superlink} has {fleet.NO_PLACE}")
        if status in NO_ANSWER:
            return fleet.NotAnswering(f"{the_superlink} does not answer any more")
        return fleet.NotConnected(f"{the_superlink} failed: {name} {text}")
