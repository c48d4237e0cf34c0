"""Whose client-id it is: fingerprints of keys, and the signature that proves one in the roll call.

What is signed names the key of the node's connection, which the SuperLink checks at each call: a signature is of no
use to another node, nor to another SuperLink. A node id would be: a server gives its nodes what ids it likes.
"""

import hashlib
import re

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_public_key

CONTEXT = "fedappeal roll call 3"
"""The first line of what is signed: a signature for another purpose never fits."""
KEY_ID = "key-"
"""How a client-id begins that is a key's fingerprint."""
_SHORT = 16
_LONGEST_KEY = 2000
_LONGEST_SIGNATURE = 200
_NONCE = re.compile("[0-9a-f]{32}")


def fingerprint(public_key: bytes) -> str:
    """Return the SHA-256 of a public key (PEM, as the SuperLink knows it), in hex."""
    return hashlib.sha256(public_key).hexdigest()


def key_id(fingerprint: str) -> str:
    """Return the client-id that belongs to a key, from its fingerprint."""
    return f"{KEY_ID}{fingerprint[:_SHORT]}"


def client_id_of(public_key: bytes) -> str:
    """Return the client-id that belongs to a public key (PEM, as the SuperLink knows it)."""
    return key_id(fingerprint(public_key))


def is_nonce(text: str) -> bool:
    """Whether a text may be a roll call's nonce: 32 hex digits."""
    return bool(_NONCE.fullmatch(text))


def statement(nonce: str, run_key: str, node: str, client_id: str) -> bytes:
    """Return the text that a client signs, a line for each part.

    Args:
        nonce: of the roll call.
        run_key: of the run.
        node: fingerprint of the connection's key.
        client_id: what the client is called.
    """
    return "\n".join((CONTEXT, nonce, run_key, node, client_id)).encode()


def public_pem(key: ec.EllipticCurvePublicKey) -> bytes:
    """Return a public key in PEM, always the same for the same key."""
    return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def sign(key: ec.EllipticCurvePrivateKey, stated: bytes) -> bytes:
    """Return the signature of a statement: ECDSA with SHA-256, in DER."""
    return key.sign(stated, ec.ECDSA(hashes.SHA256()))


def signer_of(public_key: str, signature: bytes, *stated: bytes) -> str:
    """Return the fingerprint of the key that signed one of some statements.

    Args:
        public_key: in PEM, on P-256.
        signature: as `sign` returns it.
        stated: what may have been signed.

    Raises:
        ValueError: it is no such key, or signed none of them.
    """
    if len(public_key) > _LONGEST_KEY or len(signature) > _LONGEST_SIGNATURE:
        raise ValueError("the public key or the signature is too long")
    try:
        key = load_pem_public_key(public_key.encode())
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise ValueError("the public key cannot be read") from None
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise ValueError("the public key is not on P-256")
    for statement in stated:
        try:
            key.verify(signature, statement, ec.ECDSA(hashes.SHA256()))
        except InvalidSignature:
            continue
        return fingerprint(public_pem(key))
    raise ValueError("the signature does not fit")
