"""The key in a client's state folder, and what is signed with it."""

import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from threading import Barrier

import pytest
from flwr.app import RecordDict

from client.process.owner import reset
from client.settings import NodeSettings
from client.state.own_key import FILE, note_connection, own_key, proof_of
from fedappeal.protocol import keys, proof
from fedappeal.settings.config import ConfigError
from fedappeal.system.locks import CHANGES
from tests.node import Node, run_config

NONCE = "0123456789abcdef" * 2
CALL = {keys.NONCE: NONCE, keys.RUN_KEY: "run"}


def test_it_is_made_once_for_its_owner_alone(tmp_path: Path) -> None:
    first = own_key(tmp_path)
    assert (tmp_path / FILE).stat().st_mode & 0o777 == 0o600
    assert own_key(tmp_path).private_numbers() == first.private_numbers()
    assert {path.name for path in tmp_path.iterdir()} == {FILE, CHANGES}


def test_of_several_that_make_it_at_once_the_first_stays(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as threads:
        made = {key.private_numbers().private_value for key in threads.map(own_key, [tmp_path] * 8)}
    assert made == {own_key(tmp_path).private_numbers().private_value}


def test_where_there_are_no_locks_the_first_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("client.state.own_key.changing", lambda folder: nullcontext())
    both, exists = Barrier(2), Path.exists

    def seen_by_both(path: Path) -> bool:
        there = exists(path)
        both.wait(60)
        return there

    with monkeypatch.context() as patch, ThreadPoolExecutor(2) as threads:
        patch.setattr(Path, "exists", seen_by_both)
        made = {key.private_numbers().private_value for key in threads.map(own_key, [tmp_path] * 2)}
    assert made == {own_key(tmp_path).private_numbers().private_value}
    assert [path.name for path in tmp_path.iterdir()] == [FILE]


def test_a_file_system_without_links_holds_a_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*given: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    assert own_key(tmp_path).private_numbers() == own_key(tmp_path).private_numbers()
    assert {path.name for path in tmp_path.iterdir()} == {FILE, CHANGES}


def test_an_owners_reset_keeps_it(tmp_path: Path) -> None:
    first = own_key(tmp_path)
    reset(tmp_path, forget=True)
    assert own_key(tmp_path).private_numbers() == first.private_numbers()


@pytest.mark.parametrize("damage", [b"", b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"])
def test_a_damaged_one_is_not_replaced(tmp_path: Path, damage: bytes) -> None:
    (tmp_path / FILE).write_bytes(damage)
    with pytest.raises(ConfigError, match=rf"file '.*{FILE}' is damaged: .*fedappeal federation release"):
        own_key(tmp_path)
    assert (tmp_path / FILE).read_bytes() == damage


def test_every_damage_of_a_byte_is_noticed_or_harmless(tmp_path: Path) -> None:
    whole, content = own_key(tmp_path).private_numbers(), (tmp_path / FILE).read_bytes()
    for place in range(0, len(content), 7):
        (tmp_path / FILE).write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        try:
            assert own_key(tmp_path).private_numbers().public_numbers == whole.public_numbers
        except ConfigError:
            continue


def signer(said: dict[str, str | bytes], node: str, client_id: str = "alice") -> str:
    public_key, signature = said[keys.PUBLIC_KEY], said[keys.SIGNATURE]
    assert isinstance(public_key, str)
    assert isinstance(signature, bytes)
    return proof.signer_of(public_key, signature, proof.statement(NONCE, "run", node, client_id))


def test_the_key_of_the_connection_is_named_and_never_the_node_id(tmp_path: Path) -> None:
    own = proof.fingerprint(proof.public_pem(own_key(tmp_path).public_key()))
    state = RecordDict()
    note_connection(state, "f" * 64, lasting=False)
    said = proof_of(CALL, "alice", tmp_path, state)
    assert signer(said, "f" * 64) == own
    with pytest.raises(ValueError, match="does not fit"):
        signer(said, "7")


def test_nothing_is_signed_where_nothing_is_to_be_proven(tmp_path: Path) -> None:
    registered = RecordDict()
    note_connection(registered, "f" * 64, lasting=True)
    assert proof_of(CALL, "alice", tmp_path, registered) == {}
    assert proof_of(CALL, "alice", tmp_path, RecordDict()) == {}, "a stock SuperNode's app knows no connection"
    passing = RecordDict()
    note_connection(passing, "f" * 64, lasting=False)
    assert proof_of(CALL, "alice", None, passing) == {}
    assert proof_of({keys.RUN_KEY: "run"}, "alice", tmp_path, passing) == {}
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "call",
    [
        {keys.NONCE: "x", keys.RUN_KEY: "run"},
        {keys.NONCE: NONCE + "\n", keys.RUN_KEY: "run"},
        {keys.NONCE: 5, keys.RUN_KEY: "run"},
        {keys.NONCE: NONCE, keys.RUN_KEY: "a\nb"},
        {keys.NONCE: NONCE, keys.RUN_KEY: 5},
    ],
)
def test_a_server_gets_no_signature_of_a_text_of_its_own(tmp_path: Path, call: dict[str, object]) -> None:
    state = RecordDict()
    note_connection(state, "f" * 64, lasting=False)
    with pytest.raises(ValueError, match="is not allowed"):
        proof_of(call, "alice", tmp_path, state)


def test_a_client_proves_who_it_is_after_a_restart_under_another_node_id(tmp_path: Path) -> None:
    config = run_config(clients=2, model="logistic", solo__steps=2)
    node = Node(config, tmp_path / "state")
    signers = []
    for process, connection in ((node, "e" * 64), (node.restarted(), "f" * 64)):
        note_connection(process.context.state, connection, lasting=False)
        answer = process("query", nonce=NONCE, run_key="run")
        info = dict(answer.config_records[keys.INFO])
        signers.append(signer(info, connection, str(info[keys.CLIENT_ID])))  # type: ignore[arg-type]
    assert signers[0] == signers[1]
    assert keys.SIGNATURE not in node("query").config_records[keys.INFO]


@pytest.mark.parametrize("client_id", ["x" * 65, "a b", ".a", "-a", "a/b", "[red]", "\x1b[31m", "a\n"])
def test_an_owners_id_is_checked_before_anything_starts(client_id: str) -> None:
    with pytest.raises(ConfigError, match=r"client-id = .* is not allowed: 1 to 64 letters"):
        NodeSettings.parse({"partition-id": 0, "client-id": client_id})
    assert NodeSettings.parse({"partition-id": 0, "client-id": "x" * 64}).client_id == "x" * 64
