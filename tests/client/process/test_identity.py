"""Who a client is: the fingerprint of its key where it has one, else what its state says."""

import hashlib
from pathlib import Path
from unittest.mock import Mock

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.app import RecordDict

from client.process import serve
from client.settings import Connection, NodeSettings
from client.state.store import ContextStore
from fedappeal.settings.config import ConfigError, RunConfig
from tests.node import participant_of


def served_as(node: NodeSettings, connection: Connection, monkeypatch: pytest.MonkeyPatch) -> str:
    """Start a client, and return the client-id that its process was given."""
    client = Mock()
    client.return_value.serve.return_value = 0
    monkeypatch.setattr(serve, "_Client", client)
    assert serve.run_client(node, connection, Mock(), on_event=Mock()) == 0
    return str(client.call_args.args[0].client_id)


def test_a_key_gives_the_client_id_and_an_owners_own_goes_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    pem, none = serialization.Encoding.PEM, serialization.NoEncryption()
    (tmp_path / "key").write_bytes(key.private_bytes(pem, serialization.PrivateFormat.OpenSSH, none))
    public = key.public_key().public_bytes(pem, serialization.PublicFormat.SubjectPublicKeyInfo)
    keyed = Connection(superlink="127.0.0.1:1", key=str(tmp_path / "key"))
    expected = "key-" + hashlib.sha256(public).hexdigest()[:16]
    assert served_as(NodeSettings(partition_id=0), keyed, monkeypatch) == expected
    assert served_as(NodeSettings(partition_id=0, client_id="mine"), keyed, monkeypatch) == "mine"
    keyless = Connection(superlink="127.0.0.1:1", insecure=True)
    assert served_as(NodeSettings(partition_id=0), keyless, monkeypatch) == ""


def test_a_requirement_that_is_forgotten_within_a_run_of_its_own_w0_is_not_made_up() -> None:
    config = RunConfig(clients=2, model="logistic", initial_model="somewhere.safetensors")
    node = NodeSettings(partition_id=0, device="cpu")
    with pytest.raises(ConfigError, match="has forgotten its requirement for run k"):
        participant_of(config, node, ContextStore(RecordDict())).requirement("k")
