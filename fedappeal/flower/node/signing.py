"""How a node's calls are signed: its key, the headers, and how far its clock may be off."""

from base64 import b64decode, b64encode
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import TypeGuard

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.common import constant
from flwr.supercore import date
from flwr.supercore.primitives import asymmetric
from flwr.supercore.runtime_version_compatibility import RuntimeVersionMetadata

from fedappeal.system.clock import CLOCK

Headers = list[tuple[str, str | bytes]]

AHEAD = float(constant.SYSTEM_TIME_TOLERANCE)
"""Seconds that a signature's time may be ahead of the SuperLink's."""
BEHIND = float(constant.TIMESTAMP_TOLERANCE)
"""Seconds that it may be behind; the SuperLink tolerates `AHEAD` more."""


def public_key_bytes(key: ec.EllipticCurvePublicKey) -> bytes:
    """Return a public key as the SuperLink knows it (PEM)."""
    return asymmetric.public_key_to_bytes(key)


def is_node_key(key: object) -> TypeGuard[ec.EllipticCurvePublicKey]:
    """Whether a public key is on a NIST curve, as the SuperLink registers them."""
    return isinstance(key, ec.EllipticCurvePublicKey) and asymmetric.uses_nist_ec_curve(key)


def now() -> datetime:
    """Return this machine's time, unaffected by later changes of its clock."""
    return datetime.fromtimestamp(CLOCK.now(), UTC)


class Signer:
    """A signer of a node's calls: it makes headers with version and signed time.

    The version is Flower's.
    """

    def __init__(self, key: ec.EllipticCurvePrivateKey) -> None:
        self.public_key = public_key_bytes(key.public_key())
        self._key = key
        self._version: Headers = list(RuntimeVersionMetadata.from_local_component("SuperNode").as_metadata())

    def headers(self, shift: float = 0.0) -> Headers:
        """Return headers signed with the time in ``shift`` seconds."""
        timestamp = (now() + timedelta(seconds=shift)).isoformat()
        return [
            *self._version,
            (constant.PUBLIC_KEY_HEADER, self.public_key),
            (constant.TIMESTAMP_HEADER, timestamp),
            (constant.SIGNATURE_HEADER, asymmetric.sign_message(self._key, timestamp.encode("ascii"))),
        ]


_BINARY = "-bin"
"""How gRPC marks the names of headers whose values are bytes; HTTP has no such headers."""
_KEY, _SIGNATURE, _TIME = (
    name.removesuffix(_BINARY).encode()
    for name in (constant.PUBLIC_KEY_HEADER, constant.SIGNATURE_HEADER, constant.TIMESTAMP_HEADER)
)


def http_headers(headers: Headers) -> dict[str, str]:
    """Return a call's headers for HTTP: bytes in base64, names without `_BINARY`."""
    return {
        name.removesuffix(_BINARY): b64encode(value).decode("ascii") if isinstance(value, bytes) else value
        for name, value in headers
    }


class NotSigned(ValueError):
    """A call without a valid signature; the text is Flower's reason."""


def signed_by(headers: Mapping[bytes, bytes]) -> bytes:
    """Return the public key (PEM) that signed a call over HTTP.

    Args:
        headers: by name, in lower case.

    Raises:
        NotSigned: if none did, or at another time.
    """
    try:
        key, signature, timestamp = b64decode(headers[_KEY], validate=True), headers[_SIGNATURE], headers[_TIME]
        age = (date.now() - datetime.fromisoformat(timestamp.decode("ascii"))).total_seconds()
        is_short = len(key) + len(signature) + len(timestamp) < 2048  # it is remembered
        signed = is_short and _is_signed(key, timestamp, b64decode(signature, validate=True))
    except KeyError:
        raise NotSigned("Missing authentication metadata") from None
    except (ValueError, TypeError, UnsupportedAlgorithm):
        signed = False
    if not signed:
        raise NotSigned("Invalid signature")
    if not -AHEAD < age < BEHIND + AHEAD:
        raise NotSigned("Invalid timestamp")
    return key


@lru_cache(maxsize=4096)
def _is_signed(key: bytes, timestamp: bytes, signature: bytes) -> bool:
    """Whether a key signed a time.

    A client signs once for the calls of some seconds.
    """
    public_key = asymmetric.bytes_to_public_key(key)
    return is_node_key(public_key) and asymmetric.verify_signature(public_key, timestamp, signature)
