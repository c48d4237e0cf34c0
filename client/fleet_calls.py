"""Signed calls of Flower's Fleet API, each ending in an answer or in one of three exceptions.

Every call carries Flower's version and a signature of the time by the node's key. A signature is valid for 300 s,
so one serves the calls of a few seconds.
"""

import hashlib
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("FLWR_DISABLE_UPDATE_CHECK", "1")

import grpc  # type: ignore[import-untyped, unused-ignore]
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.common.constant import PUBLIC_KEY_HEADER, SIGNATURE_HEADER, TIMESTAMP_HEADER
from flwr.proto.fleet_pb2_grpc import FleetStub
from flwr.supercore.date import now
from flwr.supercore.error import ApiErrorCode, FlowerError
from flwr.supercore.primitives.asymmetric import public_key_to_bytes, sign_message
from flwr.supercore.runtime_version_compatibility import RuntimeVersionMetadata

from client.settings import Connection

_SIGNATURE_LASTS = 5.0
_OBJECT_TIMEOUT = 600.0
_CHANNEL_OPTIONS = [
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 3000),
    ("grpc.use_local_subchannel_pool", 1),
]
Answer = TypeVar("Answer")


class NotConnected(ConnectionError):
    """The SuperLink is not there, or does not admit this node now; the message says why, in one line."""


class NodeForgotten(NotConnected):
    """The SuperLink no longer knows this node (it was restarted, say): connect again."""


class Refused(NotConnected):
    """The SuperLink does not admit this node."""


class AlreadyRegistered(Refused):
    """The SuperLink knows this node's key."""


class MessageDropped(RuntimeError):
    """A message or a reply is void (its run has ended, or its time is over); the message says why."""


@dataclass(frozen=True)
class Identity:
    """The key that a node signs its calls with.

    Attributes:
        key: its private key.
        own: whether it was made here, so that the node registers itself.
    """

    key: ec.EllipticCurvePrivateKey
    own: bool

    @classmethod
    def of(cls, connection: Connection) -> "Identity":
        """Load the key that the settings name, or make one.

        Raises:
            ValueError: if the file holds no private key on a NIST curve in OpenSSH format.
        """
        if not connection.key:
            # The SuperLink checks a signature at every call: 0.7 ms for all of a poll, 1.4 ms with Flower's P-384.
            return cls(ec.generate_private_key(ec.SECP256R1()), own=True)
        wanted = "it must hold an ECDSA key without a passphrase (ssh-keygen -t ecdsa -b 256 -N '')"
        try:
            data = Path(connection.key).expanduser().read_bytes()
            key = serialization.load_ssh_private_key(data, None)
        except (ValueError, TypeError, OSError) as error:
            raise ValueError(f"key = '{connection.key}' is not allowed: {wanted}; {error}") from None
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise ValueError(f"key = '{connection.key}' is not allowed: {wanted}")
        return cls(key, own=False)

    @property
    def client_id(self) -> str:
        """The client-id that belongs to the key: the start of its SHA-256 fingerprint."""
        return f"key-{hashlib.sha256(self.public_bytes).hexdigest()[:16]}"

    @property
    def public_bytes(self) -> bytes:
        """The public key as the SuperLink knows it (PEM)."""
        return public_key_to_bytes(self.key.public_key())


class FleetCalls:
    """A channel to the SuperLink, and the node's signature on everything that goes over it."""

    def __init__(self, connection: Connection, identity: Identity) -> None:
        self.address = connection.superlink
        self._identity = identity
        self._version = list(RuntimeVersionMetadata.from_local_component("SuperNode").as_metadata())
        self._signed_at = -_SIGNATURE_LASTS
        self._metadata: list[tuple[str, str | bytes]] = []
        if connection.insecure:
            self._channel = grpc.insecure_channel(self.address, _CHANNEL_OPTIONS)
        else:
            file = connection.root_certificates
            ca = Path(file).expanduser().read_bytes() if file else None
            self._channel = grpc.secure_channel(self.address, grpc.ssl_channel_credentials(ca), _CHANNEL_OPTIONS)
        self.stub: Any = FleetStub(self._channel)

    def call(self, method: Callable[..., Answer], request: object, timeout: float = 30.0) -> Answer:
        """Make one call and wait for its answer.

        Raises:
            NotConnected: no answer, or this node is not admitted.
            NodeForgotten: this node is not known.
            MessageDropped: the call is about a run that has ended.
        """
        try:
            return method(request, timeout=timeout, metadata=self._sign())
        except grpc.RpcError as error:
            raise self._explain(error) from None

    def call_all(self, method: Any, requests: list[Any]) -> list[Any]:
        """Make calls side by side and wait for all answers; raises what `call` raises."""
        if len(requests) == 1:
            return [self.call(method, requests[0], _OBJECT_TIMEOUT)]
        calls = [method.future(each, timeout=_OBJECT_TIMEOUT, metadata=self._sign()) for each in requests]
        try:
            return [call.result() for call in calls]
        except grpc.RpcError as error:
            raise self._explain(error) from None
        finally:
            for call in calls:
                call.cancel()

    def close(self) -> None:
        """Close the channel."""
        self._channel.close()

    def _sign(self) -> list[tuple[str, str | bytes]]:
        if time.monotonic() - self._signed_at >= _SIGNATURE_LASTS:
            timestamp = now().isoformat()
            self._metadata = [
                *self._version,
                (PUBLIC_KEY_HEADER, self._identity.public_bytes),
                (TIMESTAMP_HEADER, timestamp),
                (SIGNATURE_HEADER, sign_message(self._identity.key, timestamp.encode("ascii"))),
            ]
            self._signed_at = time.monotonic()
        return self._metadata

    def _explain(self, error: grpc.RpcError) -> Exception:
        code, details = error.code(), str(error.details() or "")
        known = FlowerError.from_json(details)
        text = known.message if known else " ".join(details.split())[:300]
        if code == grpc.StatusCode.PERMISSION_DENIED:
            return MessageDropped(f"its run has ended ({text})")
        if code == grpc.StatusCode.UNAUTHENTICATED and "node ID" in text:
            return NodeForgotten(f"the SuperLink at {self.address} does not know this node any more")
        if code == grpc.StatusCode.UNAUTHENTICATED and "timestamp" in text:
            return NotConnected(f"this machine's clock and that of the SuperLink at {self.address} differ too much")
        if known and known.code == ApiErrorCode.PUBLIC_KEY_ALREADY_IN_USE:
            return AlreadyRegistered(text)
        if known and known.code == ApiErrorCode.FLEET_SUPERNODE_REGISTRATION_DISABLED:
            return Refused(
                f"the SuperLink at {self.address} admits registered keys only: give this node one (key), and its "
                f"public half to the operator (flwr supernode register)"
            )
        if known and known.code == ApiErrorCode.FLEET_NODE_ACTIVATION_FAILED:
            return Refused(
                f"the SuperLink at {self.address} does not admit this node's key: it is not registered there, or a "
                f"process with it was online less than a minute ago"
            )
        if code in (grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.UNAUTHENTICATED):
            return Refused(f"the SuperLink at {self.address} does not admit this node: {text}")
        if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED):
            return NotConnected(f"the SuperLink at {self.address} does not answer any more")
        return NotConnected(f"the SuperLink at {self.address} failed: {code.name} {text}")
