"""How a node's calls are signed: its key, the headers, and how far its clock may be off."""

from datetime import UTC, datetime, timedelta
from typing import TypeGuard

from cryptography.hazmat.primitives.asymmetric import ec
from flwr.common import constant
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
    """Whether a public key is of the kind that the SuperLink registers: on a NIST curve."""
    return isinstance(key, ec.EllipticCurvePublicKey) and asymmetric.uses_nist_ec_curve(key)


def now() -> datetime:
    """Return this machine's time, whatever its clock was set to since."""
    return datetime.fromtimestamp(CLOCK.now(), UTC)


class Signer:
    """Makes the headers of a node's calls: Flower's version, and the time signed by the node's key."""

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
