"""What fedappeal.flower.node.signing relies on: keys, headers and the tolerance of Flower's own interceptor."""

from datetime import datetime, timedelta

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from flwr.common.constant import PUBLIC_KEY_HEADER, SIGNATURE_HEADER, TIMESTAMP_HEADER
from flwr.server.superlink.fleet.grpc_rere import node_auth_server_interceptor as authentication
from flwr.supercore.primitives.asymmetric import bytes_to_public_key, verify_signature
from flwr.supercore.runtime_version_compatibility import RuntimeVersionMetadata

from fedappeal.flower.node import signing


def test_the_superlink_verifies_a_signature() -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    signer = signing.Signer(key)
    headers = dict(signer.headers(shift=100.0))
    assert headers[PUBLIC_KEY_HEADER] == signer.public_key == signing.public_key_bytes(key.public_key())
    timestamp = str(headers[TIMESTAMP_HEADER])
    signature = headers[SIGNATURE_HEADER]
    assert isinstance(signature, bytes)
    assert verify_signature(bytes_to_public_key(signer.public_key), timestamp.encode("ascii"), signature)
    ahead = datetime.fromisoformat(timestamp) - signing.now()
    assert timedelta(seconds=99) < ahead < timedelta(seconds=101)
    caller, problem = RuntimeVersionMetadata.from_metadata(signer.headers())
    assert problem is None
    assert caller is not None
    assert caller.component_name == "SuperNode"


def test_the_tolerance_is_that_of_flowers_interceptor() -> None:
    assert -signing.AHEAD == authentication.MIN_TIMESTAMP_DIFF
    assert signing.BEHIND + signing.AHEAD == authentication.MAX_TIMESTAMP_DIFF


@pytest.mark.parametrize(
    ("key", "fits"),
    [
        (ec.generate_private_key(ec.SECP256R1()), True),
        (ec.generate_private_key(ec.SECP384R1()), True),
        (ec.generate_private_key(ec.SECP256K1()), False),
        (ed25519.Ed25519PrivateKey.generate(), False),
    ],
)
def test_keys_that_the_superlink_registers_are_on_a_nist_curve(
    key: ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey, fits: bool
) -> None:
    assert signing.is_node_key(key.public_key()) is fits
