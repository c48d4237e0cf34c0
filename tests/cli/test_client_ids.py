"""`fedappeal federation ids` and `release`: whose a client-id is, and passing it on."""

import json
import sys
from pathlib import Path

import pytest

from fedappeal.cli.main import main
from fedappeal.federation.folder import Addresses
from server.identities import FILE, IdentityFile
from strategies.rounds.exchange.ownership import ProvenKey
from strategies.rounds.reply import Refused

ALICE = "key-" + "a" * 16


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    with IdentityFile(tmp_path, "7f3a").open() as owners:
        owners.claim("alice", ProvenKey("a" * 64, True))
        owners.claim("client-0001", ProvenKey("b" * 64, False))
    return tmp_path


def command(*arguments: str, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(sys, "argv", ["fedappeal", "federation", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


def test_the_list_says_which_key_has_which_id(
    runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command("ids", "--runs", str(runs), monkeypatch=monkeypatch) == 0
    assert [line.split() for line in capsys.readouterr().out.splitlines()] == [
        ["client-id", "key", "run-key"],
        ["alice", ALICE, "(all", "runs)"],
        ["client-0001", "key-" + "b" * 16, "7f3a"],
    ]
    assert command("ids", "--runs", str(runs), "--json", monkeypatch=monkeypatch) == 0
    assert json.loads(capsys.readouterr().out)[0] == {"client-id": "alice", "key": ALICE, "run-key": ""}


def test_a_released_id_passes_to_the_next_key_or_to_a_named_one(
    runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command("release", "alice", "--runs", str(runs), monkeypatch=monkeypatch) == 0
    assert capsys.readouterr().out == "client-id 'alice' passes to the next key with which a client uses it\n"
    assert IdentityFile(runs).read().clients == {"alice": ""}
    new = "key-" + "c" * 16
    assert command("release", "alice", "--runs", str(runs), "--to", new, monkeypatch=monkeypatch) == 0
    assert capsys.readouterr().out == f"client-id 'alice' passes to {new}\n"
    with IdentityFile(runs).open() as owners:
        with pytest.raises(Refused):
            owners.claim("alice", ProvenKey("a" * 64, True))
        owners.claim("alice", ProvenKey("c" * 64, True))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["a b"], "client = 'a b' is not allowed: 1 to 64 letters"),
        ([ALICE], f"to is missing: client-id '{ALICE}' is a key's fingerprint"),
        (["alice", "--to", "key-xyz"], "to = 'key-xyz' is not allowed: key- and 16 hex digits"),
    ],
)
def test_what_is_not_allowed_is_one_line_and_changes_nothing(
    runs: Path,
    arguments: list[str],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    before = (runs / FILE).read_bytes()
    assert command("release", *arguments, "--runs", str(runs), monkeypatch=monkeypatch) == 2
    assert capsys.readouterr().err.startswith(f"fedappeal: {said}")
    assert (runs / FILE).read_bytes() == before


def test_a_folder_without_runs_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments in (["ids"], ["release", "alice"]):
        assert command(*arguments, "--runs", str(tmp_path), monkeypatch=monkeypatch) == 2
        assert "no run has kept there whose its client-ids are" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_in_a_federations_folder_its_runs_need_no_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["fedappeal", "federation", "ids"])
    for expected in ("federation is missing", f"runs = '{tmp_path / 'runs'}' is not allowed: no run has kept there"):
        with pytest.raises(SystemExit):
            main()
        assert expected in capsys.readouterr().err
        Addresses("127.0.0.1:1", "", "a:1").write(tmp_path)
