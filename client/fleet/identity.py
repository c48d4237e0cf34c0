"""A node's identity: the key that signs its calls, and the key's client-id."""

from dataclasses import dataclass
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from client.settings import Connection
from fedappeal.flower.node.signing import public_key_bytes
from fedappeal.protocol.proof import fingerprint, key_id


@dataclass(frozen=True)
class Identity:
    """The key that a node signs its calls with.

    Attributes:
        key: its private key.
        made_here: whether this process made the key, so that the node registers itself.
    """

    key: ec.EllipticCurvePrivateKey
    made_here: bool

    @classmethod
    def of(cls, connection: Connection) -> "Identity":
        """Load the key that the settings name, or make one.

        Raises:
            ValueError: if the file holds no private key on a NIST curve in OpenSSH format.
        """
        if not connection.key:
            # The SuperLink checks a signature at every call: 0.7 ms for all of a poll, 1.4 ms with Flower's P-384.
            return cls(ec.generate_private_key(ec.SECP256R1()), made_here=True)
        wanted = "it must hold an ECDSA key without a passphrase (`fedappeal key` makes one)"
        try:
            data = Path(connection.key).expanduser().read_bytes()
            key = serialization.load_ssh_private_key(data, None)
        except (ValueError, TypeError, OSError, UnsupportedAlgorithm) as error:
            raise ValueError(f"key = '{connection.key}' is not allowed: {wanted}; {error}") from None
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise ValueError(f"key = '{connection.key}' is not allowed: {wanted}")
        return cls(key, made_here=False)

    @property
    def fingerprint(self) -> str:
        """The SHA-256 of the public key as the SuperLink knows it, in hex."""
        return fingerprint(public_key_bytes(self.key.public_key()))

    @property
    def client_id(self) -> str:
        """The client-id that belongs to the key: the start of its fingerprint."""
        return key_id(self.fingerprint)
