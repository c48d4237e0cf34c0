"""The Fleet API over gRPC: signed calls, each ending in an answer or in one of the errors of `fleet`.

It calls `FleetStub` itself instead of Flower's `grpc_request_response`. That one retries for ever and hides the
reason, ends the whole process where an activation is refused (``flwr_exit``) or a node id is not known (it sends
itself SIGINT), swallows exceptions of its body and raises a BaseException for a run that was stopped. The protocol
below it, eleven calls of protobuf messages, has been steady.
"""

import contextlib
import socket
import ssl
import time
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Any, TypeVar

import grpc  # type: ignore[import-untyped, unused-ignore]
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.app import Message
from flwr.common.serde import run_from_proto
from flwr.proto import fab_pb2, fleet_pb2, heartbeat_pb2, message_pb2, run_pb2
from flwr.proto.fleet_pb2_grpc import FleetStub
from flwr.proto.node_pb2 import Node
from flwr.supercore.error import ApiErrorCode

from fedappeal.flower.messages import known_error
from fedappeal.flower.node import fleet
from fedappeal.flower.node.fleet import Announcement, RunInfo, Upload
from fedappeal.flower.node.objects import Parcel, announcement
from fedappeal.flower.node.signing import Headers, Signer

_NO_ANSWER = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED)
_UNKNOWN_NODE = "Invalid node ID"
_WRONG_TIME = "Invalid timestamp"
_SIGNATURE_LASTS = 5.0  # seconds for which one signature serves; it is valid for 300 s
_TIMEOUT = fleet.LONGEST_HOLD + 10.0
_LOOK_UP = 0.25  # seconds between two questions whether a held call is still waited for
_HEARTBEAT_TIMEOUT = 5.0
_OBJECT_TIMEOUT = 600.0
_CLOCK_TIMEOUT = 10.0
_SIDE_BY_SIDE = 8
"""Calls at one time: the SuperLink holds what is on its way, of a large model as much again as its store."""
LARGEST_OBJECT = 32 * 2**20
"""Most bytes of one answer that are taken in; Flower cuts arrays into pieces of 5 MiB."""
_CHANNEL_OPTIONS = [
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", LARGEST_OBJECT),
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 3000),
    ("grpc.use_local_subchannel_pool", 1),
]
_REFUSALS: dict[int, type[fleet.Refused]] = {
    ApiErrorCode.PUBLIC_KEY_ALREADY_IN_USE: fleet.AlreadyRegistered,
    ApiErrorCode.FLEET_SUPERNODE_REGISTRATION_DISABLED: fleet.KeyRequired,
    ApiErrorCode.FLEET_NODE_ACTIVATION_FAILED: fleet.NotActivated,
}
Answer = TypeVar("Answer")

GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"
"""What a gRPC client says first: the HTTP/2 preface and an empty SETTINGS frame."""
ALPN = "h2"
"""What TLS calls this protocol."""


def answers_greeting(answer: bytes) -> bool:
    """Whether a server's first bytes after `GREETING` are those of a gRPC server."""
    return len(answer) >= 4 and answer[3] == 4  # its first frame is SETTINGS, type 4


class GrpcFleet:
    """The calls of the Fleet API over a channel to the SuperLink, signed with one node's key.

    Every call raises `NotConnected` (or a subclass) where the SuperLink does not answer or does not admit the node,
    and `MessageDropped` where it is about a run that has ended.
    """

    def __init__(
        self, address: str, key: ec.EllipticCurvePrivateKey, *, insecure: bool, root_certificates: bytes | None
    ) -> None:
        """Open a channel; nothing is sent yet.

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
        if insecure:
            self._channel = grpc.insecure_channel(address, _CHANNEL_OPTIONS)
        else:
            credentials = grpc.ssl_channel_credentials(root_certificates)
            self._channel = grpc.secure_channel(address, credentials, _CHANNEL_OPTIONS)
        self._stub: Any = FleetStub(self._channel)

    def register(self) -> None:
        """Make the key known; `AlreadyRegistered`, or `KeyRequired` where the operator does that."""
        self._call(self._stub.RegisterNode, fleet_pb2.RegisterNodeFleetRequest(public_key=self._signer.public_key))

    def unregister(self, node_id: int, timeout: float) -> None:
        """Let the key be forgotten."""
        self._call(self._stub.UnregisterNode, fleet_pb2.UnregisterNodeFleetRequest(node_id=node_id), timeout)

    def activate(self, heartbeat_interval: float) -> int:
        """Go online, and return the node id; `NotActivated` where the key is not known or is online."""
        request = fleet_pb2.ActivateNodeRequest(
            public_key=self._signer.public_key, heartbeat_interval=heartbeat_interval
        )
        return int(self._call(self._stub.ActivateNode, request).node_id)

    def deactivate(self, node_id: int, timeout: float) -> None:
        """Go offline."""
        self._call(self._stub.DeactivateNode, fleet_pb2.DeactivateNodeRequest(node_id=node_id), timeout)

    def heartbeat(self, node_id: int, heartbeat_interval: float) -> bool:
        """Stay online for twice the interval; False where the node is not known."""
        request = heartbeat_pb2.SendNodeHeartbeatRequest(
            node=Node(node_id=node_id), heartbeat_interval=heartbeat_interval
        )
        return bool(self._call(self._stub.SendNodeHeartbeat, request, _HEARTBEAT_TIMEOUT).success)

    def pull(self, node_id: int, hold: float = 0.0, waits: Callable[[], bool] = fleet.always) -> Announcement | None:
        """Return the oldest message for the node, which is handed out once; None if there is none.

        Args:
            node_id: the node.
            hold: seconds for which the SuperLink may hold the question until there is one, up to `LONGEST_HOLD`.
            waits: asked every quarter of a second meanwhile; False: the message is no longer waited for.

        Raises:
            MessageDropped: where what came is no message.
        """
        request = fleet_pb2.PullMessagesRequest(node=Node(node_id=node_id))
        if hold > 0:
            answer = self._held(self._stub.PullMessages, request, hold, waits)
        else:
            answer = self._call(self._stub.PullMessages, request)
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
        answers = self._call_all(self._stub.PullObject, requests)
        if not all(answer.object_found for answer in answers):
            raise fleet.MessageDropped("the SuperLink does not have all of it any more")
        pairs = zip(object_ids, answers, strict=True)
        return {object_id: answer.object_content for object_id, answer in pairs if answer.object_available}

    def confirm(self, node_id: int, run_id: int, object_id: str) -> None:
        """Let the SuperLink forget a message and its objects."""
        request = message_pb2.ConfirmMessageReceivedRequest(
            node=Node(node_id=node_id), run_id=run_id, message_object_id=object_id
        )
        self._call(self._stub.ConfirmMessageReceived, request)

    def push(self, node_id: int, reply: Message, runtime_s: float) -> Upload:
        """Announce a reply; its objects follow by `push_objects`."""
        parcel = Parcel.of(reply)
        request = fleet_pb2.PushMessagesRequest(
            node=Node(node_id=node_id),
            messages_list=[parcel.message],
            message_object_trees=[parcel.tree],
            clientapp_runtime_list=[runtime_s],
        )
        answer = self._call(self._stub.PushMessages, request)
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
        if not all(answer.stored for answer in self._call_all(self._stub.PushObject, requests)):
            raise fleet.MessageDropped("the SuperLink did not store the reply")

    def get_run(self, node_id: int, run_id: int) -> RunInfo:
        """Return where a run's settings are."""
        request = run_pb2.GetRunRequest(node=Node(node_id=node_id), run_id=run_id)
        run = run_from_proto(self._call(self._stub.GetRun, request).run)
        return RunInfo(run.fab_hash, run.override_config)

    def get_fab(self, node_id: int, run_id: int, fab_hash: str) -> bytes:
        """Return a run's bundle."""
        request = fab_pb2.GetFabRequest(node=Node(node_id=node_id), hash_str=fab_hash, run_id=run_id)
        return bytes(self._call(self._stub.GetFab, request).fab.content)

    def pass_when_signed(self, shifts: Sequence[float]) -> list[bool]:
        """Whether calls pass that are signed with this machine's time plus these seconds."""
        # By no node, which is refused as well, but for another reason and after the time was looked at.
        request = fleet_pb2.PullMessagesRequest(node=Node(node_id=0))
        calls = [
            self._stub.PullMessages.future(request, timeout=_CLOCK_TIMEOUT, metadata=self._signer.headers(shift))
            for shift in shifts
        ]
        if any(call.code() in _NO_ANSWER for call in calls):
            raise fleet.NotAnswering(f"the SuperLink at {self.address} does not answer any more")
        return [not _is_about_time(call) for call in calls]

    def close(self) -> None:
        """Close the channel, without a word to the SuperLink."""
        self._channel.close()

    def _call(self, method: Callable[..., Answer], request: object, timeout: float = _TIMEOUT) -> Answer:
        try:
            return method(request, timeout=timeout, metadata=self._sign())
        except grpc.RpcError as error:
            raise self._explain(error) from None

    def _held(self, method: Any, request: object, hold: float, waits: Callable[[], bool]) -> Any | None:
        """Make a call that the SuperLink may hold; None: it is no longer waited for."""
        headers = [*self._sign(), (fleet.HOLD_HEADER, f"{hold:g}")]
        call = method.future(request, timeout=_TIMEOUT, metadata=headers)
        try:
            while waits():
                with contextlib.suppress(grpc.FutureTimeoutError):
                    return call.result(_LOOK_UP)
        except grpc.RpcError as error:
            raise self._explain(error) from None
        finally:
            call.cancel()
        return None

    def _call_all(self, method: Any, requests: Iterable[Any]) -> list[Any]:
        """Make calls, some side by side, and wait for all answers; requests are made as their turn comes."""
        coming, answers = iter(requests), list[Any]()
        while some := list(islice(coming, _SIDE_BY_SIDE)):
            calls = [method.future(request, timeout=_OBJECT_TIMEOUT, metadata=self._sign()) for request in some]
            try:
                answers += [call.result() for call in calls]
            except grpc.RpcError as error:
                raise self._explain(error) from None
            finally:
                for call in calls:
                    call.cancel()
        return answers

    def _sign(self) -> Headers:
        if time.monotonic() - self._signed_at >= _SIGNATURE_LASTS:
            self._headers = self._signer.headers()
            self._signed_at = time.monotonic()
        return self._headers

    def _explain(self, error: grpc.RpcError) -> Exception:
        code, details = error.code(), str(error.details() or "")
        flower_error = known_error(details)
        text = flower_error.message if flower_error else " ".join(details.split())[:300]
        if code == grpc.StatusCode.PERMISSION_DENIED:
            how = (flower_error and flower_error.public_details) or ""
            return fleet.RunEnded(f"its run has ended ({text})", how if how in fleet.ENDS else "")
        if code == grpc.StatusCode.UNAUTHENTICATED and _UNKNOWN_NODE in text:
            return fleet.NodeForgotten(f"the SuperLink at {self.address} does not know this node any more")
        if _is_about_time(error):
            self._signed_at = -_SIGNATURE_LASTS  # the next call is signed anew
            return fleet.WrongClock(f"this machine's clock is not that of the SuperLink at {self.address}: set it")
        if flower_error and flower_error.code in _REFUSALS:
            return _REFUSALS[flower_error.code](text)
        if code == grpc.StatusCode.RESOURCE_EXHAUSTED:
            return fleet.ObjectTooLarge(f"an object of more than {LARGEST_OBJECT // 2**20} MiB is not allowed")
        if code in (grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.UNAUTHENTICATED):
            return fleet.Refused(f"the SuperLink at {self.address} does not admit this node: {text}")
        if code in _NO_ANSWER:
            return fleet.NotAnswering(f"the SuperLink at {self.address} does not answer any more")
        return fleet.NotConnected(f"the SuperLink at {self.address} failed: {code.name} {text}")


def _is_about_time(error: Any) -> bool:
    """Whether a call was refused because of the time it was signed with."""
    return error.code() == grpc.StatusCode.UNAUTHENTICATED and _WRONG_TIME in str(error.details())


def split_address(address: str) -> tuple[str, int]:
    """Split ``HOST:PORT``; an IPv6 host may stand in brackets."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def speaks_tls(peer: tuple[str, int], timeout: float | None) -> bool:
    """Whether what listens at a host and port answers by TLS."""
    try:
        with socket.create_connection(peer, timeout) as raw, unchecked().wrap_socket(raw):
            return True
    except OSError:
        return False


def unchecked() -> ssl.SSLContext:
    """Return a context that trusts any server: to look at it, sending nothing."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols([ALPN, "http/1.1"])
    return context
