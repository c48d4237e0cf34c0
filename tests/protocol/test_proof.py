"""The signature that proves a client-id: of whom, of what, and what it is of no use for."""

import hashlib

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from fedappeal.protocol import proof
from fedappeal.protocol.keys import is_client_id

KEY = ec.generate_private_key(ec.SECP256R1())
PUBLIC = KEY.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
STATED = proof.statement("0" * 32, "run", "7", "alice")


def test_a_statement_is_five_lines_under_the_protocols_context() -> None:
    assert STATED == b"fedappeal roll call 3\n" + b"0" * 32 + b"\nrun\n7\nalice"


def test_a_signature_names_its_key() -> None:
    signature = KEY.sign(STATED, ec.ECDSA(hashes.SHA256()))
    expected = hashlib.sha256(PUBLIC).hexdigest()
    assert proof.signer_of(PUBLIC.decode(), signature, STATED) == expected
    assert proof.signer_of(PUBLIC.decode(), signature, b"something else", STATED) == expected
    assert proof.client_id_of(PUBLIC) == proof.key_id(expected) == f"key-{expected[:16]}"


def test_one_key_written_in_two_ways_is_one_key() -> None:
    signature = proof.sign(KEY, STATED)
    folded = PUBLIC.decode().replace("\n", "\r\n") + "\n"
    assert proof.signer_of(folded, signature, STATED) == proof.fingerprint(PUBLIC)


@pytest.mark.parametrize(
    "other",
    [
        proof.statement("1" * 32, "run", "7", "alice"),
        proof.statement("0" * 32, "another", "7", "alice"),
        proof.statement("0" * 32, "run", "8", "alice"),
        proof.statement("0" * 32, "run", "7", "bob"),
    ],
)
def test_it_is_of_no_use_for_another_call_run_node_or_client(other: bytes) -> None:
    with pytest.raises(ValueError, match="the signature does not fit"):
        proof.signer_of(PUBLIC.decode(), proof.sign(KEY, STATED), other)


def test_no_two_statements_are_the_same_text() -> None:
    """What a client states holds no line break: its checks of nonce, run-key and client-id see to that."""
    assert not proof.is_nonce("0" * 31)
    assert not proof.is_nonce("0" * 31 + "\n")
    assert not proof.is_nonce("0" * 32 + "\n")
    assert not is_client_id("alice\n")
    assert not is_client_id("a\nb")


def p384() -> str:
    return proof.public_pem(ec.generate_private_key(ec.SECP384R1()).public_key()).decode()


@pytest.mark.parametrize(
    ("public_key", "signature", "reason"),
    [
        ("", b"", "cannot be read"),
        ("-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n", b"", "cannot be read"),
        (p384(), b"", "not on P-256"),
        (PUBLIC.decode(), b"", "does not fit"),
        (PUBLIC.decode(), b"\x30\x06\x02\x01\x00\x02\x01\x00", "does not fit"),
        (PUBLIC.decode() + "\n" * 2000, b"", "too long"),
        (PUBLIC.decode(), b"0" * 10**6, "too long"),
    ],
)
def test_what_is_no_proof_is_refused(public_key: str, signature: bytes, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        proof.signer_of(public_key, signature, STATED)
